"""The ops that random graphs are made of (``graphs.Builder``): each function draws one."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from graphs import DTYPES, FLOATS, Builder, Drawn, Rejected, Value, magnitude

Kind = Callable[[Builder], Any]


def is_float(t: torch.Tensor) -> bool:
    return t.dtype.is_floating_point


def unary(b: Builder) -> Any:
    name = b.choose(("neg", "abs", "square", "relu", "sign", "logical_not", "bitwise_not", "floor", "round"))
    x = b.value()
    if not b.exact(x) and name in ("sign", "logical_not", "floor", "round"):
        raise Rejected
    return b.call(getattr(torch, name), x)


def smooth(b: Builder) -> Any:
    function = b.choose((torch.exp, torch.sin, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.rsqrt, torch.sqrt))
    x = b.value(lambda t: magnitude(t) <= 4)
    if function in (torch.rsqrt, torch.sqrt) and (not b.exact(x) or not bool((x.tensor >= 1).all())):
        raise Rejected
    return b.call(function, x, rough=True)


def binary(b: Builder) -> Any:
    function = b.choose((torch.add, torch.mul, torch.sub, operator.add, operator.mul, torch.maximum, torch.minimum))
    x = b.value()
    if function in (operator.add, operator.mul, torch.sub) and b.chance(3):
        return b.call(function, x, b.number())
    y = b.value()
    if function is torch.add and b.chance(4):
        return b.call(function, x, y, alpha=b.choose((2, -1)))
    return b.call(function, x, y)


def compare(b: Builder) -> Any:
    function = b.choose((torch.eq, torch.lt, torch.ge, torch.ne, torch.logical_and, torch.logical_xor, torch.bitwise_or))
    x = b.value()
    y = b.number() if function in (torch.eq, torch.lt, torch.ge) and b.chance(3) else b.value()
    return b.call(function, x, y)


def divide(b: Builder) -> Any:
    function = b.choose((torch.div, torch.floor_divide, torch.remainder, torch.fmod))
    x, y = b.value(), b.value(lambda t: t.dtype is not torch.bool and bool((t.abs() >= 1).all()))
    if function is not torch.div and not (b.exact(x) and b.exact(y)):
        raise Rejected
    return b.call(function, x, y, rough=function is torch.div)


def clamp(b: Builder) -> Any:
    low, high = b.choose(((-1, 2), (0, None), (None, 1), (-0.5, 1)))
    return b.call(torch.clamp, b.value(), low, high)


def cast(b: Builder) -> Any:
    x = b.value()
    dtype = b.choose(DTYPES)
    if dtype is torch.uint8 and bool((x.tensor < 0).any()):
        raise Rejected  # undefined for floats
    return b.call("to", x, dtype) if b.chance(2) else b.call("type", x, dtype)


def reduce(b: Builder) -> Any:
    name = b.choose(("sum", "amax", "amin", "mean", "any", "all", "prod", "var"))
    x = b.value()
    kwargs: dict[str, Any] = {}
    if x.tensor.ndim and (name in ("amax", "amin") or not b.chance(3)):
        kwargs = {"dim": b.dim(x.tensor), "keepdim": b.chance(2)}
        if name in ("sum", "mean", "amax") and x.tensor.ndim > 1 and b.chance(3):
            kwargs["dim"] = tuple(sorted({kwargs["dim"] % x.tensor.ndim, b.integer(0, x.tensor.ndim - 1)}))
    if not b.exact(x) and name in ("any", "all", "prod", "var"):
        raise Rejected
    return b.call(getattr(torch, name), x, rough=name in ("mean", "var"), growth=float(max(x.tensor.numel(), 1)), **kwargs)


def ordered(b: Builder) -> Any:
    """Positions of largest elements and running sums."""
    name = b.choose(("argmax", "max", "cumsum", "softmax", "argmin", "flip", "sort"))
    x = b.value(lambda t: t.ndim > 0)
    dim = b.dim(x.tensor)
    if name in ("argmax", "argmin", "max", "sort"):
        line = x.tensor.movedim(dim, 0).flatten(1) if x.tensor.ndim > 1 else x.tensor[:, None]
        if not b.exact(x) or x.tensor.dtype is torch.bool or any(len(set(c.tolist())) < len(c) for c in line.T):
            raise Rejected  # of equal elements any may be taken
        return b.call(getattr(torch, name), x, dim)
    if name == "softmax":
        return b.call(torch.softmax, x, dim, rough=True)
    if name == "flip":
        return b.call(torch.flip, x, [dim])
    return b.call(torch.cumsum, x, dim, growth=float(max(x.tensor.numel(), 1)))


def view(b: Builder) -> Any:
    x = b.value()
    t = x.tensor
    kind = b.choose(("slice", "permute", "reshape", "unsqueeze", "expand", "select", "transpose", "squeeze", "flatten"))
    if kind == "slice":
        places = []
        for n in t.shape:
            start = b.integer(0, min(n, 2))
            places.append(slice(start, b.choose((None, n, max(n - 1, start))), b.choose((None, 1, 2))))
        return b.call(operator.getitem, x, tuple(places)) if places else b.call("view", x, -1)
    if kind == "permute":
        order = list(range(t.ndim))
        for i in range(t.ndim):
            j = b.integer(i, t.ndim - 1)
            order[i], order[j] = order[j], order[i]
        return b.call("permute", x, *order) if order else b.call("view", x, 1)
    if kind == "reshape":
        sizes = b.choose(((-1,), (t.numel(),), (1, -1), (-1, 1), (*t.shape[::-1],), (t.numel(), 1, 1)))
        return b.call(b.choose(("reshape", "view")), x, sizes)
    if kind == "unsqueeze":
        return b.call("unsqueeze", x, b.integer(-1, t.ndim))
    if kind == "expand":
        return b.call("expand", x, *([b.choose((2, 3))] if b.chance(2) else []), *(3 if n == 1 else -1 for n in t.shape))
    if kind == "select":
        return b.call(torch.select, x, b.dim(t), b.choose((0, -1)))
    if kind == "transpose":
        return b.call("transpose", x, b.dim(t), b.dim(t))
    return b.call(kind, x)


def rare_view(b: Builder) -> Any:
    x = b.value(lambda t: t.ndim > 0)
    t = x.tensor
    kind = b.choose(
        ("chunk", "unfold", "diagonal", "narrow", "split", "movedim", "contiguous", "unbind", "detach", "as_strided")
    )
    dim = b.dim(t)
    n = t.shape[dim]
    if kind == "chunk":
        return b.call(torch.chunk, x, 2, dim)
    if kind == "split":
        return b.call(torch.split, x, b.choose((1, 2)), dim)
    if kind == "unfold":
        return b.call("unfold", x, dim, b.integer(0, min(n, 2)), b.choose((1, 2, 3)))
    if kind == "diagonal":
        return b.call(torch.diagonal, x, b.choose((0, 1, -1)), dim, b.dim(t))
    if kind == "narrow":
        start = b.integer(0, n)
        return b.call("narrow", x, dim, start, b.integer(0, n - start))
    if kind == "movedim":
        return b.call("movedim", x, dim, b.dim(t))
    if kind == "unbind":
        return b.call("unbind", x, dim)
    if kind == "as_strided":
        return b.call(torch.as_strided, x, (2,), (1,), x.tensor.storage_offset()) if t.numel() >= 2 else None
    return b.call(kind, x)


def identity(b: Builder) -> Any:
    """Calls that may return their argument itself."""
    kind = b.choose(("dropout", "to", "contiguous", "alpha_dropout", "type_as", "expand_as", "reshape_as", "float"))
    x = b.value()
    if kind == "dropout":
        return b.call(F.dropout, x, 0.5, training=False)
    if kind == "alpha_dropout":
        return b.call(F.alpha_dropout, x, 0.5, False)
    if kind == "to":
        return b.call("to", x, x.tensor.dtype)
    if kind in ("contiguous", "float"):
        return b.call(kind, x)
    return b.call(kind, x, x)


def matrix(b: Builder) -> Any:
    kind = b.choose(("linear", "self", "matmul", "addmm", "linear", "bmm"))
    if kind == "self":
        x = b.value(lambda t: is_float(t) and t.ndim >= 2 and t.numel() < 100)
        y = b.call("transpose", x, -1, -2)
        return b.call(torch.matmul, x, y, growth=_reach(x))
    x = b.value(lambda t: is_float(t) and t.ndim >= 1)
    k, n, dtype = x.tensor.shape[-1], b.choose((4, 1, 3, 8)), x.tensor.dtype
    if kind == "matmul":
        y = b.new_input((k, n), dtype) if b.chance(2) else b.value(lambda t: t.ndim > 0 and t.dtype == dtype)
        return b.call(torch.matmul, x, y, growth=_reach(x, y))
    if kind == "addmm":
        y = b.new_input((k, n), dtype)
        z = b.value(lambda t: t.dtype == dtype)
        return b.call(torch.addmm, z, x, y, growth=_reach(x, y) + 2, **b.choose(({}, {"beta": 2}, {"alpha": -1, "beta": 0})))
    if kind == "bmm":
        y = b.value(lambda t: t.ndim == 3 and t.dtype == dtype)
        return b.call(torch.bmm, x, y, growth=_reach(x, y))
    w = b.new_input((n, k), dtype)
    bias = b.new_input((n,), dtype) if b.chance(2) else None
    return b.call(F.linear, x, w, bias, growth=_reach(x, w) + 1)


def _reach(*operands: Value) -> float:
    longest = max(max(v.tensor.shape, default=1) for v in operands)
    return longest * max(1.0, *(magnitude(v.tensor) for v in operands))


def join(b: Builder) -> Any:
    x = b.value()
    others = [b.value(lambda t: t.shape == x.tensor.shape) for _ in range(b.integer(1, 2))]
    parts = [x, *others]
    if b.chance(3):
        return b.call(torch.stack, parts, b.integer(-1, x.tensor.ndim))
    return b.call(torch.cat, parts, b.dim(x.tensor))


def select(b: Builder) -> Any:
    mask = b.value(lambda t: t.dtype is torch.bool)
    kind = b.choose(("where", "masked_fill", "where number"))
    x = b.value(lambda t: t.dtype is not torch.bool)
    if kind == "where":
        return b.call(torch.where, mask, x, b.value())
    return b.call("masked_fill", x, mask, b.number()) if kind == "masked_fill" else b.call(torch.where, mask, x, b.number())


def index(b: Builder) -> Any:
    kind = b.choose(("index_select", "embedding", "index", "gather", "tril", "index_add", "index_copy", "roll", "repeat"))
    x = b.value(lambda t: t.ndim > 0 and t.numel() > 0)
    dim = b.dim(x.tensor)
    n = x.tensor.shape[dim]
    if kind in ("tril", "roll", "repeat"):
        arguments = {"tril": (), "roll": (1, dim), "repeat": (2, *[1] * x.tensor.ndim)}[kind]
        return b.call(kind, x, *arguments)
    places = b.new_input((b.integer(1, 3),), torch.int64)
    places = b.call(torch.remainder, places, x.tensor.shape[0] if kind in ("embedding", "index") else n)
    if kind == "index_select":
        return b.call(torch.index_select, x, dim, places)
    if kind == "embedding":
        return b.call(F.embedding, places, x)
    if kind == "index":
        return b.call(operator.getitem, x, (places, b.choose((Ellipsis, slice(None)))))
    if kind == "gather":
        shape = [1] * x.tensor.ndim
        shape[dim] = -1
        return b.call(torch.gather, x, dim, b.call("view", places, shape))
    source = b.call(torch.index_select, x, dim, places)
    if kind == "index_copy" and len(set(places.tensor.tolist())) < places.tensor.numel():
        raise Rejected
    return b.call(getattr(torch, kind), x, dim, places, source)


def make(b: Builder) -> Any:
    dtype = b.choose(DTYPES)
    kind = b.choose(("zeros", "ones", "full", "arange", "zeros_like", "full_like", "new_zeros", "tensor"))
    if kind == "arange":
        return b.call(torch.arange, b.integer(0, 5), dtype=b.choose((torch.int64, torch.float32)), device="webgpu")
    if kind == "full":
        return b.call(torch.full, b.shape(), b.integer(0, 3), dtype=dtype, device="webgpu")
    if kind == "zeros_like":
        return b.call(torch.zeros_like, b.value())
    if kind == "full_like":
        return b.call(torch.full_like, b.value(), 2, dtype=dtype)
    if kind == "new_zeros":
        return b.call("new_zeros", b.value(), b.shape())
    if kind == "tensor":
        return b.call(torch.full, (), b.choose((2, 0.5)), device="webgpu")
    return b.call(getattr(torch, kind), b.shape(), dtype=dtype, device="webgpu")


# ---------------------------------------------------------------------------------------------------- writes


def write(b: Builder) -> Any:
    x = b.value()
    kind = b.choose(("add_", "mul_", "copy_", "iadd", "setitem", "fill_", "zero_", "clamp_", "relu_", "sub_", "out", "neg_"))
    if kind in ("zero_", "relu_", "neg_"):
        return b.call(kind, x) and None
    if kind == "fill_":
        return b.call("fill_", x, b.choose((1, 0, 2))) and None
    if kind == "clamp_":
        return b.call("clamp_", x, 0, 2) and None
    if kind == "out":
        y = b.value(lambda t: t.dtype == x.tensor.dtype and t.shape in (x.tensor.shape, ()))
        z = b.value(lambda t: t.dtype == x.tensor.dtype and t.shape == x.tensor.shape)  # another shape would be resized
        return b.call(b.choose((torch.add, torch.mul)), x, y, out=z) and None
    other = b.number() if b.chance(3) and kind != "copy_" else b.value()
    if kind == "setitem":
        places = tuple(slice(b.integer(0, 1), None, b.choose((None, 2))) for _ in x.tensor.shape)
        return b.call(operator.setitem, x, places[: b.integer(0, len(places))] or Ellipsis, other)
    target: Any = operator.iadd if kind == "iadd" else kind
    return b.call(target, x, other) and None


def write_at(b: Builder) -> Any:
    kind = b.choose(("masked_fill_", "setitem mask", "index_add_", "index_copy_", "index_put_", "index_fill_"))
    x = b.value(lambda t: t.ndim > 0 and t.numel() > 0)
    if kind == "masked_fill_":
        return b.call("masked_fill_", x, b.value(lambda t: t.dtype is torch.bool), b.integer(0, 2)) and None
    if kind == "setitem mask":
        mask = b.value(lambda t: t.dtype is torch.bool and t.shape == x.tensor.shape)
        return b.call(operator.setitem, x, mask, b.integer(0, 2))
    dim = b.dim(x.tensor)
    places = b.call(torch.remainder, b.new_input((b.integer(1, 2),), torch.int64), x.tensor.shape[dim])
    if kind != "index_add_" and len(set(places.tensor.tolist())) < places.tensor.numel():
        raise Rejected
    if kind == "index_fill_":
        return b.call("index_fill_", x, dim, places, b.integer(0, 2)) and None
    source = b.call(torch.index_select, x, dim, places)
    if kind == "index_put_":
        dim = 0
        places = b.call(torch.remainder, places, x.tensor.shape[0])
        source = b.call(torch.index_select, x, 0, places)
        if len(set(places.tensor.tolist())) < places.tensor.numel():
            raise Rejected
        return b.call("index_put_", x, (places,), source) and None
    source = b.call(torch.add, source, 1)
    return b.call(kind, x, dim, places, source) and None


# ---------------------------------------------------------------------------------------------------- layers


def _features(b: Builder) -> Value:
    """A float tensor with few rows of a width that kernels like, new or one of those there are."""
    if b.chance(2):
        return b.value(lambda t: is_float(t) and t.ndim >= 2 and t.shape[-1] in (8, 16, 32) and magnitude(t) < 30)
    sizes = b.choose(((1, 16), (1, 1, 16), (2, 8), (1, 32), (3, 16), (2, 3, 8)))
    return b.new_input(sizes, b.choose(FLOATS))


def _weighted(b: Builder, x: Value, n: int, bias: bool = False) -> Any:
    w = b.new_input((n, x.tensor.shape[-1]), x.tensor.dtype)
    small = b.call(torch.mul, w, 0.25) if b.chance(4) else w
    extra = b.new_input((n,), x.tensor.dtype) if bias else None
    return b.call(F.linear, x, small, extra, growth=_reach(x, w) + 1)


def _tamed(b: Builder, x: Value) -> Value:
    """The same within [-4, 4]."""
    return b.call(torch.clamp, x, -4, 4) if magnitude(x.tensor) > 4 else x  # type: ignore[no-any-return]


def norm(b: Builder) -> Any:
    """RMS norm as models write it, and what only looks like it."""
    x = _features(b)
    n, dtype = x.tensor.shape[-1], x.tensor.dtype
    if not bool((x.tensor.double().square().mean(-1) >= 0.5).all()):
        raise Rejected
    gain = b.new_input((n,), dtype)
    kind = b.choose(("rms", "rms", "layer", "fused"))
    if kind == "layer":
        if not bool((x.tensor.double().var(-1) >= 0.5).all()):
            raise Rejected
        bias = b.new_input((n,), dtype) if b.chance(2) else None
        return b.call(F.layer_norm, x, (n,), gain, bias, 1e-5, rough=True)
    if kind == "fused":
        return b.call(F.rms_norm, x, (n,), gain, 1e-5, rough=True)
    wide = b.call("to", x, torch.float32)
    square = b.call("pow", wide, 2) if b.chance(2) else b.call(torch.mul, wide, wide)
    mean = b.call("mean", square, b.choose((-1, x.tensor.ndim - 1, 0)), keepdim=True, rough=True)
    root = b.call(torch.rsqrt, b.call(torch.add, mean, b.choose((1e-6, 1e-5, 1))), rough=True)
    scaled = b.call(torch.mul, b.choose((wide, x)), root)
    narrow = b.call("to", scaled, dtype)
    return b.call(torch.mul, *b.choose(((gain, narrow), (narrow, gain), (gain, scaled))))


def gated(b: Builder) -> Any:
    """Sibling projections, one of them through an activation."""
    x = _features(b)
    n = b.choose((8, 4, 16))
    bias = b.chance(3)
    gate, up = _weighted(b, x, n, bias), _weighted(b, x, n, bias)
    act = b.call(b.choose((F.silu, F.gelu, F.relu)), _tamed(b, gate), rough=True)
    hidden = b.call(torch.mul, act, up)
    if b.chance(2):
        hidden = _weighted(b, _tamed(b, hidden), x.tensor.shape[-1])
        return b.call(torch.add, *b.choose(((x, hidden), (hidden, x))))
    return hidden


def projections(b: Builder) -> Any:
    """Several layers over one input."""
    x = _features(b)
    bias = b.chance(2)
    for n in b.choose(((8, 4, 4), (8, 8), (3, 5))):
        y = _weighted(b, x, n, bias)
    return y


def rotary(b: Builder) -> Any:
    """The rotate-half form, and near misses of it."""
    x = b.value(lambda t: is_float(t) and t.ndim >= 2 and t.shape[-1] % 2 == 0 and t.shape[-1] > 0)
    n, dtype = x.tensor.shape[-1], x.tensor.dtype
    half = n // 2 if not b.chance(6) else b.integer(1, n - 1)
    cos, sin = b.new_input(b.choose(((n,), (1, n))), dtype), b.new_input((n,), dtype)
    low = b.call(operator.getitem, x, (Ellipsis, slice(None, half)))
    high = b.call(operator.getitem, x, (Ellipsis, slice(half, None)))
    turned = b.call(torch.cat, [b.call(torch.neg, high), low] if not b.chance(6) else [low, b.call(torch.neg, high)], -1)
    parts = b.call(torch.mul, x, cos), b.call(torch.mul, turned, sin)
    return b.call(torch.add, *parts)


def attention(b: Builder) -> Any:
    """Grouped queries, masks, a single query."""
    heads, groups = b.choose(((2, 1), (2, 2), (4, 2)))
    queries, keys, width, dtype = b.choose((1, 3)), b.choose((3, 5)), b.choose((8, 4)), b.choose(FLOATS)
    q = b.new_input((1, heads, queries, width), dtype)
    k, v = (b.new_input((1, groups, keys, width), dtype) for _ in range(2))
    q, k = b.call(torch.mul, q, 0.5), b.call(torch.mul, k, 0.5)
    mask = None
    if b.chance(2):
        mask = b.call(torch.ge, b.new_input((1, 1, queries, keys), torch.int64), 0)
        mask = mask if b.chance(2) else b.call(torch.where, mask, 0.0, b.choose((-math.inf, -1.0)))
    kwargs: dict[str, Any] = {"enable_gqa": True} if groups < heads else {}
    if kwargs and b.chance(2):
        n = heads // groups
        k, v = (
            b.call("reshape", b.call("expand", b.call("unsqueeze", t, 2), -1, -1, n, -1, -1), (1, heads, keys, width))
            for t in (k, v)
        )
        kwargs = {}
    if mask is None:
        kwargs["is_causal"] = b.chance(2)
    if mask is not None and mask.tensor.dtype.is_floating_point and mask.tensor.dtype != dtype:
        raise Rejected
    return b.call(F.scaled_dot_product_attention, q, k, v, mask, rough=True, **kwargs)


COMPUTE: tuple[Kind, ...] = (
    binary, view, unary, reduce, cast, matrix, join, select, compare, smooth, clamp, ordered, index, make, divide,
    rare_view, identity,
)  # fmt: skip
LAYERS: tuple[Kind, ...] = (norm, gated, projections, rotary, attention)
WRITES: tuple[Kind, ...] = (write, write, write_at)
#: What has a derivative, and numbers that stay small.
DIFFERENTIABLE: tuple[Kind, ...] = (binary, view, smooth, reduce, matrix, join, clamp, rare_view, identity)


def draw_graph(b: Builder, kinds: tuple[Kind, ...], most: int) -> Drawn:
    """Inputs, ops, outputs."""
    for _ in range(b.integer(1, 3)):
        b.new_input()
    for _ in range(b.integer(1, most)):
        try:
            b.choose(kinds)(b)
        except Rejected:
            continue
    outputs = [b.values[-1]]
    for _ in range(b.integer(0, 3)):
        outputs.append(b.choose(b.values))
    return b.finish(outputs)


__all__ = ["COMPUTE", "DIFFERENTIABLE", "LAYERS", "WRITES", "draw_graph"]
