"""The table of op cases: what is called, on which inputs, in which dtypes. The tests run it under every layout of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)
ALL = FLOATS + INTS + BOOL
NUMBERS = FLOATS + INTS
SHAPE = (7, 5, 11)

Maker = Callable[[torch.dtype], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One op.

    Attributes:
        name: unique; the part before a space names the function of ``torch`` (for its in-place and ``out=`` forms).
        call: the op as a function of the tensors that ``inputs`` make.
        inputs: one maker a tensor.
        exact: whether floats must agree to the bit (NaN equal to NaN).
        tolerance: relative and absolute, of float32; half precisions get theirs on top.
        host: compared with the CPU in the same dtype instead of float64.
    """

    name: str
    call: Callable[..., Any]
    inputs: tuple[Maker, ...]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    exact: bool = False
    tolerance: float = 1e-5
    host: bool = False

    @property
    def function(self) -> str:
        return self.name.partition(" ")[0]


# ---------------------------------------------------------------------------------------------------- inputs


def values(shape: tuple[int, ...] = SHAPE, low: float = -4.0, high: float = 4.0, seed: int = 0) -> Maker:
    """Uniform values; integers in [low, high], bools half of each."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        if dtype is torch.bool:
            return torch.rand(shape, generator=g) > 0.5
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=g) * (high - low) + low).to(dtype)
        first = max(int(low), 0) if dtype is torch.uint8 else int(low)
        return torch.randint(first, int(high) + 1, shape, generator=g).to(dtype)

    return make


def whole(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Maker:
    """The whole range of integers; wide floats."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        if dtype is torch.bool or dtype.is_floating_point:
            return values(shape, -300, 300, seed)(dtype)
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, shape, generator=g, dtype=dtype)

    return make


def fixed(x: torch.Tensor) -> Maker:
    """The same tensor whatever the dtype under test (indices, masks)."""
    return lambda dtype: x


def special() -> Maker:
    """NaN, infinities, zeros of both signs, subnormals, extremes."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        info = torch.finfo(dtype)
        numbers = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, info.max, info.min, info.tiny, 0.5, -2.5]
        return torch.tensor(numbers).to(dtype)

    return make


X, Y = values(seed=1), values(seed=2)
POSITIVE, UNIT, ABOVE_ONE = values(low=0.1), values(low=-0.99, high=0.99), values(low=1, high=9)
NONZERO = values(low=1, high=7, seed=3)

# ---------------------------------------------------------------------------------------------------- pointwise


def _unary(
    names: str, maker: Maker, dtypes: tuple[torch.dtype, ...], exact: bool = False, tolerance: float = 1e-5
) -> list[Case]:
    return [Case(n, getattr(torch, n), (maker,), dtypes, exact, tolerance) for n in names.split()]


def _binary(names: str, dtypes: tuple[torch.dtype, ...], second: Maker = Y, exact: bool = False) -> list[Case]:
    return [Case(n, getattr(torch, n), (X, second), dtypes, exact) for n in names.split()]


_BITWISE = INTS + BOOL
POINTWISE: list[Case] = [
    *_unary("sin cos tan atan sinh cosh asinh exp exp2 expm1 tanh erf erfc sigmoid", X, ALL),
    *_unary("log log2 log10 log1p sqrt rsqrt lgamma digamma", POSITIVE, FLOATS),
    *_unary("asin acos atanh erfinv", UNIT, FLOATS),
    *_unary("acosh", ABOVE_ONE, ALL),
    *_unary("reciprocal", NONZERO, NUMBERS),
    *_unary("abs neg sign sgn square relu", X, NUMBERS, exact=True),
    *_unary("floor ceil trunc round", X, NUMBERS, exact=True),
    *_unary("frac", X, FLOATS, exact=True),
    *_unary("bitwise_not", whole(), _BITWISE, exact=True),
    *_unary("logical_not isnan isinf isfinite signbit isposinf isneginf", X, ALL, exact=True),
    *_binary("add mul maximum minimum fmax fmin", ALL, exact=True),
    *_binary("sub", NUMBERS, exact=True),
    *_binary("eq ne lt gt le ge logical_and logical_or logical_xor", ALL, exact=True),
    *_binary("bitwise_and bitwise_or bitwise_xor", _BITWISE, whole(seed=4), exact=True),
    *_binary("bitwise_left_shift bitwise_right_shift", INTS, values(low=0, high=6, seed=5), exact=True),
    *_binary("div", ALL, NONZERO),
    *_binary("floor_divide remainder fmod", NUMBERS, NONZERO, exact=True),
    *_binary("atan2 hypot", FLOATS),
    *_binary("gcd", INTS, exact=True),
    Case("pow", torch.pow, (POSITIVE, values(low=0, high=3, seed=6)), NUMBERS),
    Case("pow square", lambda x: x**2, (X,), NUMBERS),
    Case("pow root", lambda x: x**0.5, (POSITIVE,), FLOATS),
    Case("div trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, NONZERO), (torch.float32, *INTS), True),
    Case("div floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, NONZERO), (torch.float32, *INTS), True),
    Case("add alpha", lambda x, y: torch.add(x, y, alpha=3), (X, Y), NUMBERS),
    Case("sub alpha", lambda x, y: torch.sub(x, y, alpha=2), (X, Y), NUMBERS),
    Case("rsub", lambda x: 3 - x, (X,), NUMBERS),
    Case("add number", lambda x: x + 2.5, (X,), ALL),
    Case("mul number", lambda x: 3 * x, (X,), ALL),
    Case("remainder number", lambda x: x % 3, (X,), NUMBERS),
    Case("remainder of number", lambda x: 7 % x, (NONZERO,), NUMBERS),
    Case("pow of number", lambda x: 2**x, (values(low=0, high=6),), NUMBERS),
    Case("where", torch.where, (fixed(values(seed=7)(torch.bool)), X, Y), ALL, True),
    Case("masked_fill", lambda x, m: x.masked_fill(m, 1), (X, fixed(values(seed=7)(torch.bool))), ALL, True),
    Case("clamp", lambda x: x.clamp(1, 3), (X,), NUMBERS, True),
    Case("clamp tensors", torch.clamp, (X, values(low=-2, high=0), values(low=1, high=3)), NUMBERS, True),
    Case("clamp_min", lambda x: x.clamp_min(1), (X,), NUMBERS, True),
    Case("clamp_max", lambda x: x.clamp_max(1), (X,), NUMBERS, True),
    Case("hardtanh", F.hardtanh, (X,), FLOATS, True),
    Case("gelu", F.gelu, (X,)),
    Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (X,)),
    Case("leaky_relu", lambda x: F.leaky_relu(x, 0.1), (X,)),
    Case("elu", lambda x: F.elu(x, 1.5), (X,)),
    Case("selu", F.selu, (X,)),
    Case("celu", lambda x: F.celu(x, 0.7), (X,)),
    Case("silu", F.silu, (X,)),
    Case("mish", F.mish, (X,)),
    Case("softplus", lambda x: F.softplus(x, 2.0, 5.0), (X,)),
    Case("hardsigmoid", F.hardsigmoid, (X,)),
    Case("hardswish", F.hardswish, (X,)),
    Case("logsigmoid", F.logsigmoid, (X,)),
    Case("threshold", lambda x: F.threshold(x, 0.5, -7.0), (X,), FLOATS, True),
    Case("addcmul", lambda x, a, b: torch.addcmul(x, a, b, value=2), (X, Y, NONZERO), NUMBERS),
    Case("addcdiv", lambda x, a, b: torch.addcdiv(x, a, b, value=0.5), (X, Y, NONZERO)),
    Case("lerp", lambda a, b: torch.lerp(a, b, 0.3), (X, Y)),
    Case("lerp tensor", torch.lerp, (X, Y, values(low=0, high=1))),
    Case("nan_to_num", lambda x: torch.nan_to_num(x / 0.0, 1.0, 2.0, -3.0), (X,), (torch.float32,), True),
]

# ---------------------------------------------------------------------------------------------------- reductions

_ROWS = values((13, 7, 31), seed=8)
_SMALL = values((3, 5, 2), low=1, high=2, seed=9)
REDUCTIONS: list[Case] = [
    *[
        Case(
            f"{name} {dims} {keep}",
            lambda x, n=name, d=dims, k=keep: getattr(torch, n)(x, dim=d, keepdim=k),
            (_ROWS,),
            dtypes,
        )
        for name, dtypes in (("sum", ALL), ("mean", FLOATS), ("amax", ALL), ("amin", ALL))
        for dims, keep in ((0, False), (-1, True), ((0, 2), False))
    ],
    *[Case(f"{n} whole", getattr(torch, n), (_ROWS,), ALL) for n in ("sum", "amax", "amin", "max", "min", "any", "all")],
    *[Case(f"{n} dim", lambda x, n=n: getattr(torch, n)(x, 1), (_ROWS,), ALL, host=True) for n in ("any", "all")],
    Case("prod", torch.prod, (_SMALL,), ALL),
    Case("prod dim", lambda x: torch.prod(x, 1), (_SMALL,), ALL),
    *[Case(f"{n} dim", lambda x, n=n: getattr(torch, n)(x, 2), (_ROWS,), FLOATS, host=True) for n in ("argmax", "argmin")],
    *[Case(f"{n} dim", lambda x, n=n: tuple(getattr(torch, n)(x, 0)), (_ROWS,), FLOATS, host=True) for n in ("max", "min")],
    *[Case(f"{n}", lambda x, n=n: getattr(torch, n)(x, dim=(0, 2)), (_ROWS,)) for n in ("var", "std")],
    *[Case(f"{n}", lambda x, n=n: getattr(torch, n)(x, dim=1, correction=0), (_ROWS,)) for n in ("var_mean", "std_mean")],
    *[
        Case(f"norm {p}", lambda x, p=p: torch.linalg.vector_norm(x, p, dim=2), (_ROWS,))
        for p in (0, 1, 2, 3, 0.5, float("inf"), -float("inf"))
    ],
    Case("logsumexp", lambda x: torch.logsumexp(x, 1), (_ROWS,)),
    Case("nansum", torch.nansum, (_ROWS,)),
    Case("count_nonzero", lambda x: torch.count_nonzero(x, 1), (_ROWS,), ALL),
]

# ---------------------------------------------------------------------------------------------------- products, norms

_A, _B = values((13, 17), low=-1, high=1, seed=10), values((17, 19), low=-1, high=1, seed=11)
_PRODUCT = (torch.float32, torch.float16, torch.int64, torch.int32)
PRODUCTS: list[Case] = [
    Case("mm", torch.mm, (_A, _B), _PRODUCT),
    Case("mm long", torch.mm, (values((67, 131), -1, 1), values((131, 71), -1, 1))),
    Case("mv", torch.mv, (_A, values((17,), -1, 1)), _PRODUCT),
    Case("dot", torch.dot, (values((101,), -1, 1), values((101,), -1, 1, 3)), _PRODUCT),
    Case("bmm", torch.bmm, (values((3, 5, 7), -1, 1), values((3, 7, 11), -1, 1, 1)), _PRODUCT),
    Case("matmul broadcast", torch.matmul, (values((2, 1, 5, 7), -1, 1), values((3, 7, 2), -1, 1, 1)), _PRODUCT),
    Case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), (values((13, 19)), _A, _B), _PRODUCT),
    Case("addmm row", torch.addmm, (values((19,)), _A, _B), _PRODUCT),
    Case("addmv", torch.addmv, (values((13,)), _A, values((17,), -1, 1)), _PRODUCT),
    Case("baddbmm", torch.baddbmm, (values((3, 5, 11)), values((3, 5, 7), -1, 1), values((3, 7, 11), -1, 1, 1)), _PRODUCT),
    Case("linear", F.linear, (values((2, 3, 17), -1, 1), values((19, 17), -1, 1), values((19,))), FLOATS),
    Case("outer", torch.outer, (values((7,)), values((5,))), _PRODUCT),
    Case("einsum", lambda a, b: torch.einsum("ij,jk->ki", a, b), (_A, _B), _PRODUCT),
]
NORMS: list[Case] = [
    *[Case(f"softmax {d}", lambda x, d=d: torch.softmax(x, d), (_ROWS,)) for d in (0, 1, 2)],
    *[Case(f"log_softmax {d}", lambda x, d=d: torch.log_softmax(x, d), (_ROWS,)) for d in (0, 2)],
    Case(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, (31,), w, b),
        (_ROWS, values((31,)), values((31,), seed=1)),
        tolerance=3e-5,
    ),
    Case("layer_norm two", lambda x: F.layer_norm(x, (7, 31)), (_ROWS,), tolerance=3e-5),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (31,), w, 1e-6), (_ROWS, values((31,)))),
    Case("group_norm", lambda x, w: F.group_norm(x, 3, w), (values((2, 6, 5)), values((6,))), tolerance=3e-5),
    Case("normalize", lambda x: F.normalize(x, dim=1), (_ROWS,)),
    Case("cross_entropy", lambda x: F.cross_entropy(x, torch.arange(13, device=x.device) % 5), (values((13, 5)),)),
]

# ---------------------------------------------------------------------------------------------------- moving elements

_T = values((7, 5, 3), seed=12)
_I = fixed(torch.tensor([[4, 0, 2], [1, 1, 3]]))
_G = fixed(torch.randint(0, 5, (7, 4, 3), generator=torch.Generator().manual_seed(3)))
_LINE = fixed(torch.tensor([4, 1, 3]))
MOVES: list[Case] = [
    Case("index", lambda x, i: x[i], (_T, _I), ALL),
    Case("index middle", lambda x, i: x[:, i], (_T, _I), ALL),
    Case("index apart", lambda x, i: x[i, :, torch.tensor([0, 1, 2], device=x.device)], (_T, _I), ALL),
    Case("index negative", lambda x, i: x[-1 - i], (_T, _LINE), ALL),
    Case("index mask", lambda x: x[x > 0], (_T,), NUMBERS),
    Case("index none", lambda x, i: x[None, i, ..., 1], (_T, _LINE), ALL),
    Case("take_along_dim", lambda x, g: torch.take_along_dim(x, g, 1), (_T, _G), ALL),
    Case("gather", lambda x, g: torch.gather(x, 1, g), (_T, _G), ALL),
    Case("scatter", lambda x, i: x.scatter(1, i[:, None, None].expand(3, 1, 3), x[:3, :1]), (_T, _LINE), ALL),
    Case("scatter value", lambda x, g: x.scatter(1, g, 1), (_T, _G), ALL),
    Case("scatter_add", lambda x, g: x.scatter_add(1, g, x[:, 1:]), (_T, _G), (torch.float32, *INTS)),
    Case("index_select", lambda x, i: torch.index_select(x, 1, i), (_T, _LINE), ALL),
    Case("index_add", lambda x, i: torch.index_add(x, 1, i, x[:, :3], alpha=2), (_T, _LINE), (torch.float32, *INTS)),
    Case("index_copy", lambda x, i: torch.index_copy(x, 1, i, x[:, 2:]), (_T, _LINE), ALL),
    Case("index_fill", lambda x, i: torch.index_fill(x, 1, i, 1), (_T, _LINE), ALL),
    Case("index_put", lambda x, i: x.index_put((i,), x[:3]), (_T, _LINE), ALL),
    Case("index_put add", lambda x, i: x.index_put((i * 0,), x[:3], True), (_T, _LINE), (torch.float32, *INTS)),
    Case("embedding", lambda x, i: F.embedding(i, x.flatten(1)), (_T, _I)),
    Case("cat", lambda x: torch.cat([x, x[:2], x[4:]]), (_T,), ALL),
    Case("cat last", lambda x: torch.cat([x, x[..., :1]], -1), (_T,), ALL),
    Case("cat promote", lambda x: torch.cat([x, torch.ones(1, 5, 3, device=x.device, dtype=torch.int32)]), (_T,), ALL),
    Case("stack", lambda x: torch.stack([x, x], 1), (_T,), ALL),
    Case("flip", lambda x: x.flip(0, 2), (_T,), ALL),
    Case("roll", lambda x: x.roll((2, -1), (0, 2)), (_T,), ALL),
    Case("roll flat", lambda x: x.roll(11), (_T,), ALL),
    *[Case(f"tril {k}", lambda x, k=k: x.tril(k), (_T,), ALL) for k in (-1, 0, 9)],
    *[Case(f"triu {k}", lambda x, k=k: x.triu(k), (_T,), ALL) for k in (-9, 0, 1)],
    Case("repeat", lambda x: x.repeat(2, 1, 3), (_T,), ALL),
    Case("repeat_interleave", lambda x: x.repeat_interleave(3, 1), (_T,), ALL),
    Case("contiguous", lambda x: x.transpose(0, 2).contiguous(), (_T,), ALL),
    Case("pad", lambda x: F.pad(x, (1, 2, 0, 3)), (_T,), ALL),
    Case("nonzero", lambda x: torch.nonzero(x), (_T,), ALL),
    Case("masked_select", lambda x: torch.masked_select(x, x > 0), (_T,), NUMBERS),
    Case("cumsum", lambda x: x.cumsum(1), (_T,), (torch.float32, *INTS)),
]
