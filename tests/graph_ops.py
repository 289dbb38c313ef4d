"""The ops that random graphs are made of (``graphs.Builder``): each function draws one."""

from __future__ import annotations

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
        line = x.tensor.movedim(dim, 0).reshape(x.tensor.shape[dim], -1)
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
    kind = b.choose(("chunk", "unfold", "diagonal", "narrow", "split", "movedim", "contiguous", "unbind", "detach", "as_strided"))
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
    x = b.value()
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
        y = b.value(lambda t: t.dtype == x.tensor.dtype)
        z = b.value(lambda t: t.dtype == x.tensor.dtype)
        if torch.broadcast_shapes(x.tensor.shape, y.tensor.shape) != z.tensor.shape:
            raise Rejected
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


COMPUTE: tuple[Kind, ...] = (
    binary, view, unary, reduce, cast, matrix, join, select, compare, smooth, clamp, ordered, index, make, divide,
    rare_view, identity,
)  # fmt: skip
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


__all__ = ["COMPUTE", "DIFFERENTIABLE", "FLOATS", "WRITES", "draw_graph"]
