"""The next token from logits, drawn on the device: no value travels to the host, so nothing waits.

Plain PyTorch throughout: it runs eagerly on any device and traces into a graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GREEDY = 1e-6  # temperatures below are taken for 0: float32 logits that differ at all are then decided
_CAUSE = "look for an overflow in the model, as float16 activations beyond 65504 (bfloat16 and float32 reach further)"
_NAN = f"sample: no token can be chosen, as the logits of a row hold NaN; {_CAUSE}"
_NO_CHOICE = f"sample: no token can be chosen, as the logits of a row hold NaN (or +inf, or are all -inf); {_CAUSE}"


def check_arguments(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raises ValueError for a temperature below 0 or not finite, a top_k below 1 or not whole, a top_p outside (0, 1]."""
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be 0 (the likeliest token) or a positive number, got {temperature}")
    if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k must be a whole number of at least 1, or None for all tokens, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")


def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws a token for each row of logits.

    Args:
        logits: [B, V] of any float dtype; -inf excludes a token.
        temperature: the logits are divided by it; 0 takes the likeliest token (of equal ones the first).
        top_k: only the k likeliest tokens can be drawn.
        top_p: only the likeliest tokens can be drawn, as many as it takes to reach this probability (at least one); counted
            among the top_k.
        generator: of the logits' device; None is the default one.

    Returns:
        Tokens [B], int64, on the logits' device.

    Raises:
        ValueError: for arguments out of range, or logits of another shape.
        RuntimeError: where NaN logits leave nothing to choose; from the device it comes with the next wait.
    """
    check_arguments(temperature, top_k, top_p)
    if logits.dim() != 2 or logits.shape[1] == 0 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be [rows, tokens], one token at least, of a float dtype; got {list(logits.shape)}, {logits.dtype}"
        )
    if temperature < GREEDY or top_k == 1:
        return likeliest(logits)
    values, names = candidates(logits, top_k, top_p is not None and top_p < 1)
    return draw(values, names, temperature, top_p if top_p is not None and top_p < 1 else None, generator=generator)


def likeliest(logits: Tensor) -> Tensor:
    """The likeliest token of each row of logits [B, V], int64 [B]; NaN are reported."""
    best, tokens = logits.max(dim=1)
    return torch.ops.webgpu.raise_where(tokens, best, _NAN)  # type: ignore[no-any-return]


def draw(
    values: Tensor,
    names: Tensor | None,
    temperature: float | Tensor,
    top_p: float | Tensor | None = None,
    top_k: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws from ``candidates``, by settings that may be tensors: one plan then does for all their values.

    Args:
        values, names: as ``candidates`` gives them, in descending order where ``top_p`` or ``top_k`` are given.
        temperature, top_p: as ``sample``; tensors are float32 [1].
        top_k: whole number [1]: only so many of the candidates can be drawn.
    """
    scaled = (values - values.amax(dim=1, keepdim=True)) / temperature
    if top_k is not None:
        rank = torch.arange(values.shape[1], dtype=top_k.dtype, device=values.device)
        # NaN come first in descending order, and shall be seen.
        scaled = torch.where((rank < top_k) | scaled.isnan(), scaled, -math.inf)
    probabilities = torch.softmax(scaled, dim=1)
    # NaN anywhere makes a row NaN everywhere. It is drawn from evenly then, and reported with the token.
    bad = probabilities[:, :1].isnan()
    probabilities = torch.where(bad, 1.0, probabilities)
    if top_p is not None:
        before = probabilities.cumsum(dim=1) - probabilities
        probabilities = torch.where(before < top_p, probabilities, 0.0)
    places = torch.multinomial(probabilities, 1, generator=generator)
    tokens = places if names is None else names.gather(1, places)
    return torch.ops.webgpu.raise_where(tokens[:, 0], bad[:, 0], _NO_CHOICE)  # type: ignore[no-any-return]


def candidates(logits: Tensor, top_k: int | None, ordered: bool) -> tuple[Tensor, Tensor | None]:
    """Float32 logits that may be drawn, [B, C], and their tokens; None where these are all in order.

    Args:
        top_k: how many at most, the likeliest ones; None is all.
        ordered: in descending order.
    """
    if top_k is not None and top_k < logits.shape[1]:
        values, names = logits.topk(top_k, dim=1)
        return values.float(), names
    if ordered:
        values, names = logits.sort(dim=1, descending=True)
        return values.float(), names
    return logits.float(), None
