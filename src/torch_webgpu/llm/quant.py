"""Quantised linear layers and embeddings: 8 bits a weight with a scale a row, or 4 bits in groups of 32.

Only weights are quantised; products are computed in the dtype of the activations. Storage formats: ops/quantised.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..ops.quantised import GROUP, check_weight, dequantise_int4, dequantise_int8

log = logging.getLogger(__name__)

Kind = Literal["int8", "int4"]
_CHUNK = 1 << 22  # weights quantised at a time, which bounds the temporaries
_SHRINK = (1.0, 0.95, 0.9, 0.85)  # parts of a group's range tried as the range of its 16 steps
_LARGEST = 65504.0  # float16, in which scales of groups are kept


def _check_kind(kind: str) -> None:
    if kind not in get_args(Kind):
        raise ValueError(f"weights can be quantised to {' or '.join(get_args(Kind))}, not {kind!r}")


# ---------------------------------------------------------------------------------------------------- rounding


def quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric 8 bits a row: values int8 [N, K] and scale float32 [N, 1] = largest magnitude / 127."""
    w = weight.float()
    scale = w.abs().amax(dim=1, keepdim=True) / 127
    return (w / _divisor(scale)).round().clamp(-127, 127).to(torch.int8), scale


def quantise_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """4 bits in groups of 32 with a scale and a minimum: values int32 [N, K / 8], scale and minimum float16 [N, K / 32].

    Several ranges are tried for each group, each refined by least squares; the one with the least squared error wins.
    """
    n, k = weight.shape
    groups = weight.float().reshape(-1, GROUP)
    parts = [_fit_groups(part) for part in groups.split(_CHUNK // GROUP)]
    nibbles, scale, minimum = (torch.cat(list(column)) for column in zip(*parts, strict=True))
    # Copies: a view holds its base's storage too, and siblings.py moves only what one tensor owns.
    return pack_int4(nibbles.view(n, k)), scale.view(n, k // GROUP).clone(), minimum.view(n, k // GROUP).clone()


def pack_int4(nibbles: Tensor) -> Tensor:
    """Int32 [N, K / 8] of integers 0 to 15, uint8 [N, K]; element k goes to bits 4 (k % 8) of word k // 8."""
    return (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).contiguous().view(torch.int32)


def _divisor(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def _fit_groups(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nibbles uint8 [R, 32], scale and minimum float16 [R, 1] of groups float32 [R, 32]."""
    low, high, mean = w.amin(dim=1, keepdim=True), w.amax(dim=1, keepdim=True), w.mean(dim=1, keepdim=True)
    best: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    for shrink in _SHRINK:
        half = (high - low) * (shrink / 2)
        minimum, scale = (high + low) / 2 - half, half * (2 / 15)
        q = ((w - minimum) / _divisor(scale)).round().clamp(0, 15)
        centred = q - q.mean(dim=1, keepdim=True)
        spread = (centred * centred).sum(dim=1, keepdim=True)
        slope = (centred * (w - mean)).sum(dim=1, keepdim=True) / _divisor(spread)
        scale = torch.where(spread == 0, scale, slope).half()
        minimum = (mean - scale.float() * q.mean(dim=1, keepdim=True)).half()
        s, m = scale.float(), minimum.float()
        q = ((w - m) / _divisor(s)).round().clamp(0, 15)
        error = ((q * s + m - w) ** 2).sum(dim=1, keepdim=True)
        if best is None:
            best = (error, q, scale, minimum)
        else:
            better = error < best[0]
            new = (error, q, scale, minimum)
            chosen = [torch.where(better, a, b) for a, b in zip(new, best, strict=True)]
            best = (chosen[0], chosen[1], chosen[2], chosen[3])
    assert best is not None
    return best[1].to(torch.uint8), best[2], best[3]


# ---------------------------------------------------------------------------------------------------- modules


class QuantisedWeight(nn.Module):
    """A quantised matrix [N, K]; modules that are tied share one.

    Args:
        values: int8 [N, K], or int32 [N, K / 8] with eight 4-bit numbers a word.
        scale: int8: float32 or float16 [N, G]; int4: float16 [N, K / 32].
        minimum: int4 only: float16 [N, K / 32]; None means ``(nibble - 8) * scale``.
    """

    values: Tensor
    scale: Tensor
    minimum: Tensor | None

    def __init__(self, values: Tensor, scale: Tensor, minimum: Tensor | None = None) -> None:
        super().__init__()
        self.kind: Kind = "int8" if values.dtype == torch.int8 else "int4"
        if self.kind == "int8" and minimum is not None:
            raise RuntimeError("QuantisedWeight: weights of 8 bits have no minimum")
        self.shape = check_weight("QuantisedWeight", 8 if self.kind == "int8" else 4, values, scale, minimum)
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("minimum", minimum)

    @classmethod
    def from_float(cls, weight: Tensor, kind: Kind) -> QuantisedWeight:
        """Quantises a matrix [N, K], on its device; ValueError where that cannot be done."""
        _check_kind(kind)
        reason = unfit(weight, kind)
        if reason:
            raise ValueError(f"a weight of shape {list(weight.shape)} cannot be quantised to {kind}: {reason}")
        weight = weight.detach()
        largest = float(weight.abs().max())
        if not largest <= (_LARGEST if kind == "int4" else torch.finfo(torch.float32).max):
            raise ValueError(
                f"a weight of shape {list(weight.shape)} cannot be quantised to {kind}: its largest magnitude is {largest}"
            )
        return cls(*(quantise_int8(weight) if kind == "int8" else quantise_int4(weight)))

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias``: x [..., K] → [..., N]."""
        if self.kind == "int8":
            return torch.ops.webgpu.linear_int8(x, self.values, self.scale, bias)  # type: ignore[no-any-return]
        return torch.ops.webgpu.linear_int4(x, self.values, self.scale, self.minimum, bias)  # type: ignore[no-any-return]

    def rows(self, indices: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantised rows: indices [...] → [..., K]; IndexError for one out of range."""
        if self.kind == "int8":
            return torch.ops.webgpu.embedding_int8(indices, self.values, self.scale, dtype)  # type: ignore[no-any-return]
        return torch.ops.webgpu.embedding_int4(  # type: ignore[no-any-return]
            indices, self.values, self.scale, self.minimum, dtype
        )

    def dequantise(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix [N, K] in floating point."""
        if self.kind == "int8":
            return dequantise_int8(self.values, self.scale).to(dtype)
        return dequantise_int4(self.values, self.scale, self.minimum).to(dtype)

    def reordered(self, order: Tensor) -> QuantisedWeight:
        """The same rows in another order; exact."""
        minimum = None if self.minimum is None else self.minimum.index_select(0, order)
        return QuantisedWeight(self.values.index_select(0, order), self.scale.index_select(0, order), minimum)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(t.numel() * t.element_size() for t in self.buffers())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantisedWeight:
        """Moves between devices as any module does; a change of the model's dtype leaves the scales as they are."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, t in before.items():
            now = self._buffers[name]
            if t is not None and now is not None and now.dtype != t.dtype:
                self._buffers[name] = t.to(now.device)
        return self

    def extra_repr(self) -> str:
        """Shape, kind and bits a weight."""
        n, k = self.shape
        return f"{n}, {k}, {self.kind}, {8 * self.nbytes / max(n * k, 1):.2f} bits a weight"


class QuantisedLinear(nn.Module):
    """``nn.Linear`` with quantised weights, for inference: a backward pass raises RuntimeError.

    Args:
        quantised: the weight [out_features, in_features].
        bias: [out_features] or None.
    """

    bias: nn.Parameter | None

    def __init__(self, quantised: QuantisedWeight, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = quantised.shape
        self.quantised = quantised
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear, kind: Kind) -> QuantisedLinear:
        """Quantises a layer; ValueError where that cannot be done."""
        bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        return cls(QuantisedWeight.from_float(linear.weight, kind), bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features], float32, float16 or bfloat16 → [..., out_features] of the same dtype."""
        return self.quantised.linear(x, self.bias)

    def dequantise(self, dtype: torch.dtype = torch.float32) -> nn.Linear:
        """An ``nn.Linear`` that computes the same."""
        weight = self.quantised.dequantise(dtype)
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta", dtype=dtype)
        linear.weight = nn.Parameter(weight)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.detach().to(dtype))
        return linear

    def extra_repr(self) -> str:
        """As ``nn.Linear`` has it, with the kind."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"kind={self.quantised.kind}"
        )


class QuantisedEmbedding(nn.Module):
    """``nn.Embedding`` with quantised rows, for inference.

    Args:
        quantised: the table [num_embeddings, embedding_dim].
        dtype: of the result; follows ``module.to(dtype)``.
        padding_idx: kept for those who ask; it has no effect without gradients.
    """

    like: Tensor

    def __init__(self, quantised: QuantisedWeight, dtype: torch.dtype, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = quantised.shape
        self.padding_idx = padding_idx
        self.quantised = quantised
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)  # changes dtype with the module

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, kind: Kind) -> QuantisedEmbedding:
        """Quantises a table; ValueError where that cannot be done."""
        quantised = QuantisedWeight.from_float(embedding.weight, kind)
        return cls(quantised, embedding.weight.dtype, embedding.padding_idx)

    def forward(self, indices: Tensor) -> Tensor:
        """indices [...], int64 or int32 → [..., embedding_dim]; IndexError for one out of range."""
        return self.quantised.rows(indices, self.like.dtype)

    def dequantise(self, dtype: torch.dtype = torch.float32) -> nn.Embedding:
        """An ``nn.Embedding`` with the same rows."""
        return nn.Embedding(
            self.num_embeddings, self.embedding_dim, self.padding_idx, _weight=self.quantised.dequantise(dtype)
        )

    def extra_repr(self) -> str:
        """As ``nn.Embedding`` has it, with the kind."""
        return f"{self.num_embeddings}, {self.embedding_dim}, dtype={self.like.dtype}, kind={self.quantised.kind}"


# ---------------------------------------------------------------------------------------------------- whole models


def unfit(weight: Tensor, kind: str) -> str:
    """Why a matrix cannot be quantised to the kind, or an empty string."""
    if weight.dim() != 2 or weight.numel() == 0 or not weight.is_floating_point():
        return "it is no matrix of floating-point numbers"
    if kind == "int4" and weight.shape[1] % GROUP:
        return f"its {weight.shape[1]} columns are no multiple of {GROUP}"
    return ""


def layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, Any]]:
    """The plain linear layers and embeddings: (parent, name in it, full name, layer); subclasses compute otherwise."""
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear or (type(child) is nn.Embedding and child.max_norm is None):
                yield parent, name, f"{path}.{name}".lstrip("."), child


def replacement(layer: nn.Linear | nn.Embedding, quantised: QuantisedWeight) -> QuantisedLinear | QuantisedEmbedding:
    """The quantised module that takes a layer's place."""
    if isinstance(layer, nn.Linear):
        return QuantisedLinear(quantised, layer.bias)
    return QuantisedEmbedding(quantised, layer.weight.dtype, layer.padding_idx).train(layer.training)


def quantise(model: nn.Module, kind: Kind) -> nn.Module:
    """Replaces the linear layers of a model, in place, and an embedding whose table is also a linear layer's weight.

    Layers that do not fit (4 bits: in_features no multiple of 32) stay as they are; which ones is logged. No parameter
    of the model requires gradients afterwards.

    Args:
        kind: ``int8``: a scale a row, symmetric; ``int4``: groups of 32 weights, each with scale and minimum.

    Returns:
        The model; a quantised layer where it is a plain ``nn.Linear`` itself.
    """
    _check_kind(kind)
    if type(model) is nn.Linear:
        return QuantisedLinear.from_linear(model, kind)
    skipped = _replace_layers(model, kind)
    if skipped:
        log.warning("not quantised to %s: %s", kind, "; ".join(skipped))
    if any(t.device.type == "webgpu" for t in model.buffers()):
        torch.get_device_module("webgpu").empty_cache()  # of the float weights and what was worked out from them
    return model.requires_grad_(False)


def _replace_layers(model: nn.Module, kind: Kind) -> list[str]:
    """Puts quantised layers in the place of those that fit; returns which do not, and why."""
    found = list(layers(model))
    products = {id(layer.weight) for _, _, _, layer in found if isinstance(layer, nn.Linear)}
    weights: dict[int, QuantisedWeight] = {}
    modules: dict[int, nn.Module] = {}
    skipped: list[str] = []
    for parent, name, path, layer in found:
        key = id(layer.weight)
        if key not in products:
            continue
        reason = unfit(layer.weight, kind)
        if reason:
            skipped.append(f"{path} ({reason})")
            continue
        if key not in weights:
            weights[key] = QuantisedWeight.from_float(layer.weight, kind)
        if id(layer) not in modules:
            modules[id(layer)] = replacement(layer, weights[key])
        setattr(parent, name, modules[id(layer)])
    return skipped
