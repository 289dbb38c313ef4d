"""Ops whose values cannot be compared with the CPU's one by one, and samples that mean nothing; each with its reason."""

from __future__ import annotations

import math
from typing import Any

import torch

from .moving import Call

# New memory: any value is right. Shape, strides and dtype are compared.
UNINITIALISED = frozenset(
    ("empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided", "resize_", "resize_as_")
)

# Random: another stream than the CPU's. Shape and dtype are compared, and what PyTorch's own tests check: range and moments.
_DROPOUT = "zeros and scaled inputs"
RANDOM: dict[str, str] = {
    **{f"nn.functional.{name}": _DROPOUT for name in ("dropout", "dropout2d", "dropout3d")},
    **{
        f"nn.functional.{name}": "random"
        for name in ("alpha_dropout", "feature_alpha_dropout.with_train", "rrelu", "fractional_max_pool2d")
    },
    "nn.functional.fractional_max_pool3d": "random",
    "nn.functional.multi_head_attention_forward": "dropout",
    "nn.functional.scaled_dot_product_attention": "dropout",
    "svd_lowrank": "random projection",
    "pca_lowrank": "random projection",
    **dict.fromkeys(("bernoulli", "multinomial", "randint", "randint_like"), "integers in a range"),
    **dict.fromkeys(("rand_like", "uniform", "exponential", "geometric", "log_normal", "cauchy"), "moments"),
    **dict.fromkeys(("randn", "randn_like", "normal", "normal.in_place", "normal.number_mean"), "moments"),
}


def is_random(name: str, call: Call) -> bool:
    """Whether a call draws random numbers: ops with a dropout argument do so only where it is not zero."""
    if name not in RANDOM:
        return False
    if name == "nn.functional.multi_head_attention_forward":
        return bool(call.args[9]) and call.kwargs.get("training", True)
    if name == "nn.functional.scaled_dot_product_attention":
        return bool(call.kwargs.get("dropout_p"))
    return call.kwargs.get("training", True)


def check_random(name: str, call: Call, got: torch.Tensor, want: torch.Tensor) -> str | None:
    """What is wrong with random numbers beside those of the CPU: None, or what differs."""
    kind = RANDOM[name]
    a, b = got.detach().double().reshape(-1), want.detach().double().reshape(-1)
    if a.numel() == 0:
        return None
    if kind == _DROPOUT and isinstance(call.input, torch.Tensor) and call.input.shape == got.shape:
        p = call.kwargs.get("p", 0.5)
        scaled = call.input.double() / (1 - p) if p < 1 else torch.zeros_like(call.input.double())
        bad = (got.double() != 0) & ((got.double() - scaled).abs() > 2e-2 * scaled.abs() + 1e-5)
        return "a kept element is not the input divided by 1 - p" if bool(bad.any()) else None
    if kind == "integers in a range":
        low, high = _range(name, call, b)
        return None if bool(((a >= low) & (a <= high)).all()) else f"outside [{low}, {high}]"
    if kind == "moments" and name not in ("cauchy",) and a.numel() >= 20 and a.isfinite().all() and b.isfinite().all():
        spread = max(float(b.std()), float(a.std())) / math.sqrt(a.numel())
        if abs(float(a.mean() - b.mean())) > 8 * spread + 1e-6:
            return f"mean {float(a.mean()):.3g}, on the CPU {float(b.mean()):.3g}"
    return None


def _range(name: str, call: Call, want: torch.Tensor) -> tuple[float, float]:
    numbers = [a for a in (call.input, *call.args) if isinstance(a, int) and not isinstance(a, bool)]
    if name == "bernoulli":
        return 0.0, 1.0
    if name == "multinomial":
        return 0.0, float(call.input.shape[-1] - 1)
    high = call.kwargs.get("high", numbers[-1] if numbers else None)
    low = call.kwargs.get("low", numbers[-2] if len(numbers) > 1 else 0)
    return (float(low), float(high - 1)) if high is not None else (-math.inf, math.inf)


# Results that differ from the CPU's on purpose, or where the CPU's mean nothing: {op: (dtypes, aspects, reason)}; none: all.
_LAPACK = "LAPACK reads NaN and infinities as it likes, up to a crash of the process; the op runs there"
_INFINITE = "statistics of infinite inputs: infinity or NaN, by the order of summation"
_MARGIN = "PyTorch's decomposition passes NaN on, its kernel drops it"
_OVERLAP = "places that are given twice: either value may win"
_ZETA = "the limit, where the CPU has 0 times infinity"
_NORMS = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
Expected = tuple[tuple[str, ...], tuple[str, ...], str]
EXPECTED: dict[str, tuple[Expected, ...]] = {
    "linalg.eigvals": (((), ("extremal",), _LAPACK),),
    "linalg.eig": (((), ("extremal",), _LAPACK),),
    **{name: (((), ("extremal",), _INFINITE),) for name in _NORMS},
    "nn.functional.multi_margin_loss": (((), ("extremal",), _MARGIN),),
    "nn.functional.multilabel_margin_loss": (((), ("extremal",), _MARGIN),),
    **{f"nn.functional.max_unpool{n}d": (((), ("extremal",), _OVERLAP),) for n in (1, 2, 3)},
    "special.zeta": (((), ("extremal", "large"), _ZETA),),
    "special.airy_ai": (((), ("large", "extremal"), "2/3 |x|^1.5 radians have no digits left in float32"),),
    **{
        f"special.{name}": (
            (("int64", "int32", "int16"), ("extremal",), "recurrences of up to 2^31 steps: no digits are left in float32"),
        )
        for name in ("laguerre_polynomial_l", "legendre_polynomial_p")
    },
    "igamma": (((), ("extremal",), "the CPU takes a subnormal first argument for 0"),),
    "lcm": (((), ("extremal",), "dividing the smallest integer by -1 ends the process on the CPU"),),
    "gcd": (((), ("extremal",), "the smallest integer has no absolute value"),),
    "unique": (((), ("extremal",), "NaN has no order: the CPU's sort of rows puts it anywhere"),),
    "narrow_copy": (((), ("error",), "a dimension out of range is an IndexError, as for all other ops"),),
}


# Results whose dtype is another than the CPU's, on purpose.
_STATISTICS = "the saved statistics of half-precision inputs are float32, as they are on CUDA"
OTHER_DTYPE: dict[str, str] = {
    **dict.fromkeys(_NORMS, _STATISTICS),
    "bincount": "sums of integer weights are float32, on the CPU float64",
}


def expected() -> list[tuple[str, Expected]]:
    """All entries of the list."""
    return [(name, entry) for name, entries in sorted(EXPECTED.items()) for entry in entries]


def excused(name: str, dtype: str, what: str) -> str | None:
    """The reason why an aspect of a pair is not compared."""
    for dtypes, aspects, reason in EXPECTED.get(name, ()):
        if (not dtypes or dtype in dtypes) and (not aspects or what.startswith(aspects)):
            return reason
    return None


# Ops that accept some input which the CPU refuses.
PERMISSIVE: dict[str, str] = {
    "amax": "more than 64 dimensions are no trouble",
    "amin": "more than 64 dimensions are no trouble",
    "nn.functional.adaptive_max_pool2d": "an empty output size stands for the input's",
    "nn.functional.adaptive_max_pool3d": "an empty output size stands for the input's",
}

# Ops that want an argument on the CPU, whatever device the input is on.
ON_CPU = frozenset(("tensor_split",))

# The place of one of several equal elements is anyone's choice: places must lead to equal values. {op: position of dim}
TIES = {"sort": 0, "topk": 1, "kthvalue": 1, "median": 0, "nanmedian": 0, "mode": 0, "argsort": 0}


def places_agree(name: str, call: Call, got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two answers of places in the input lead to equal values."""
    at = TIES[name]
    x = call.input
    dim: Any = call.kwargs.get("dim", call.args[at] if len(call.args) > at else -1)
    if not isinstance(dim, int) or isinstance(dim, bool) or got.shape != want.shape:
        return False
    if x.dim() == 0:
        return bool((got == want).all())
    if got.dim() < x.dim():
        got, want = got.unsqueeze(dim), want.unsqueeze(dim)
    if got.numel() and (int(got.min()) < 0 or int(got.max()) >= x.shape[dim]):
        return False
    return torch.equal(x.gather(dim, got).nan_to_num(), x.gather(dim, want).nan_to_num())
