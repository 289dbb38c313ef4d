"""The ops that random graphs are made of (``graphs.Builder``): each function draws one."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from graphs import DTYPES, Builder, Drawn, Rejected, Value, magnitude

Kind = Callable[[Builder], Any]


def is_float(t: torch.Tensor) -> bool:
    return t.dtype.is_floating_point


def representable(t: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a cast is defined: that of floats beyond the numbers of a whole dtype is not."""
    if not is_float(t) or dtype.is_floating_point or dtype is torch.bool:
        return True
    info = torch.iinfo(dtype)
    return bool(((t >= info.min) & (t <= info.max)).all())


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


def curved(b: Builder) -> Any:
    """Activations with numbers of their own, and other functions of a few steps."""
    function, arguments = b.choose(
        (
            (F.leaky_relu, (0.5,)),
            (F.hardtanh, (-1, 2)),
            (F.hardswish, ()),
            (F.softplus, ()),
            (F.elu, (0.5,)),
            (torch.erf, ()),
            (torch.expm1, ()),
            (torch.cos, ()),
            (torch.atan, ()),
            (F.mish, ()),
            (torch.nan_to_num, ()),
            (F.logsigmoid, ()),
        )
    )
    return b.call(function, b.value(lambda t: is_float(t) and magnitude(t) <= 4), *arguments, rough=True)


def ternary(b: Builder) -> Any:
    """Three operands in one op."""
    x, y, z = (b.value(lambda t: t.dtype is not torch.bool) for _ in range(3))
    kind = b.choose(("addcmul", "addcmul", "lerp", "clamp", "rsub", "pow"))
    if kind == "addcmul":
        return b.call(torch.addcmul, x, y, z, value=b.choose((1, 2, -1)))
    if kind == "lerp":
        return b.call(torch.lerp, x, y, b.choose((0.5, 2.0)))
    if kind == "clamp":
        return b.call(torch.clamp, x, y, z)
    if kind == "rsub":
        return b.call(torch.rsub, x, y, alpha=b.choose((1, 2)))
    return b.call("pow", x, b.choose((2, 3, 1)))


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
    if not representable(x.tensor, dtype):
        raise Rejected
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
    """Largest elements with their places, and sorting."""
    name = b.choose(("argmax", "max", "argmin", "sort", "topk", "min", "argsort"))
    x = b.value(lambda t: t.ndim > 0)
    dim = b.dim(x.tensor)
    if not b.exact(x) or x.tensor.dtype is torch.bool or repeated_along(x.tensor, dim):
        raise Rejected  # of equal elements any may be taken
    if name == "topk":
        return b.call(torch.topk, x, b.integer(0, x.tensor.shape[dim]), dim)
    return b.call(getattr(torch, name), x, dim)


def repeated_along(t: torch.Tensor, dim: int) -> bool:
    """Whether a line along a dimension holds a number twice."""
    lines: Any = t.movedim(dim, -1).reshape(-1, t.shape[dim]) if t.numel() else []
    return any(len(set(line.tolist())) < len(line) for line in lines)


def folded(b: Builder) -> Any:
    """Rarer reductions and scans."""
    kind = b.choose(("cumprod", "logsumexp", "norm", "count_nonzero", "aminmax", "log_softmax", "cummax", "std", "diff"))
    x = b.value(lambda t: t.ndim > 0 and magnitude(t) < 50)
    dim = b.dim(x.tensor)
    if kind in ("cumprod", "count_nonzero", "cummax") and not b.exact(x):
        raise Rejected
    grown = float(max(x.tensor.numel(), 1))
    if kind in ("logsumexp", "log_softmax"):
        if kind == "logsumexp":
            return b.call(torch.logsumexp, x, dim, b.chance(2), rough=True)
        return b.call(torch.log_softmax, x, dim, rough=True)
    if kind == "norm":
        return b.call(torch.linalg.vector_norm, x, b.choose((2, 1, math.inf)), dim, b.chance(2), rough=True, growth=grown)
    if kind == "std":
        if not b.exact(x) or not bool((x.tensor.double().var(dim) >= 0.5).all()):
            raise Rejected
        return b.call(torch.std, x, dim, rough=True)
    if kind == "aminmax":
        return b.call(torch.aminmax, x, dim=dim)
    if kind == "cummax":
        values = b.call(torch.cummax, x, dim)
        b.values.remove(values[1])  # of equal elements any may be named
        return values[0]
    return b.call(getattr(torch, kind), x, dim=dim)


def rotated(b: Builder) -> Any:
    """Running sums, shares and reversals along a dimension."""
    x = b.value(lambda t: t.ndim > 0)
    dim, kind = b.dim(x.tensor), b.choose(("cumsum", "softmax", "flip", "roll"))
    if kind == "cumsum":
        return b.call(torch.cumsum, x, dim, growth=float(max(x.tensor.numel(), 1)))
    if kind == "softmax":
        return b.call(torch.softmax, x, dim, rough=True)
    return b.call(torch.flip, x, [dim]) if kind == "flip" else b.call("roll", x, 1, dim)


def spread(b: Builder) -> Any:
    """Copies of elements beside each other, and padding."""
    x = b.value(lambda t: t.ndim > 0)
    t, dim = x.tensor, b.dim(x.tensor)
    kind = b.choose(("pad", "pad", "repeat_interleave", "tile", "broadcast_to", "narrow_copy", "rot90", "outer", "one_hot"))
    if kind == "pad":
        ends = tuple(b.integer(-1, 2) for _ in range(2 * b.integer(1, t.ndim)))
        return b.call(F.pad, x, ends, value=b.choose((0, 1)))
    if kind == "repeat_interleave":
        return b.call(torch.repeat_interleave, x, b.integer(1, 3), dim)
    if kind == "tile":
        return b.call(torch.tile, x, b.choose(((2,), (1, 2), (2, 1, 1))))
    if kind == "broadcast_to":
        return b.call(torch.broadcast_to, x, (2, *t.shape))
    if kind == "narrow_copy":
        return b.call("clone", b.call("narrow", x, dim, 0, b.integer(0, t.shape[dim])))
    if kind == "rot90":
        return b.call(torch.rot90, x, 1, (0, 1)) if t.ndim > 1 else None
    if kind == "one_hot":
        places = b.call(torch.remainder, b.new_input((b.integer(1, 3),), torch.int64), 4)
        return b.call(F.one_hot, places, 4)
    y = b.value(lambda y: y.ndim == 1 and y.numel() < 20)
    return b.call(torch.outer, x, y) if t.ndim == 1 and t.numel() < 20 else None


def scattered(b: Builder) -> Any:
    """Indexing with tensors of indices, there and back."""
    kind = b.choose(("scatter", "scatter_add", "scatter_reduce", "pairs", "take_along_dim", "put", "slices", "gather"))
    x = b.value(lambda t: t.ndim > 0 and t.numel() > 0)
    t, dim = x.tensor, b.dim(x.tensor)
    n = t.shape[dim]
    if kind == "pairs":
        if t.ndim < 2:
            raise Rejected
        size = b.choose(((3,), (2, 1)))
        first = b.call(torch.remainder, b.new_input(size, torch.int64), t.shape[0])
        second = b.call(torch.remainder, b.new_input((3,), torch.int64), t.shape[1])
        return b.call(operator.getitem, x, (first, second))
    if kind == "slices":
        if t.ndim < 2:
            raise Rejected
        places = b.call(torch.remainder, b.new_input((b.integer(1, 3),), torch.int64), t.shape[1])
        return b.call(operator.getitem, x, (slice(None), places))
    shape = tuple(b.integer(1, 3) if d == dim % t.ndim else m for d, m in enumerate(t.shape))
    places = b.call(torch.remainder, b.new_input(shape, torch.int64), n)
    if kind == "take_along_dim":
        return b.call(torch.take_along_dim, x, places, dim)
    found = b.call(torch.gather, x, dim, places)
    if kind == "gather":
        return found
    if kind == "put":
        rows = b.call(torch.remainder, b.new_input((b.integer(1, 3),), torch.int64), t.shape[0])
        source = b.call(torch.index_select, x, 0, rows)
        return b.call(torch.index_put, x, (rows,), source, True, growth=8.0)
    if kind == "scatter_add":
        return b.call(torch.scatter_add, x, dim, places, found, growth=8.0)
    if kind == "scatter_reduce":
        return b.call(torch.scatter_reduce, x, dim, places, found, b.choose(("amax", "sum", "amin")), growth=8.0)
    twice = repeated_along(places.tensor, dim)  # either may win
    return b.call(torch.scatter, x, dim, places, b.integer(0, 3) if twice else found)


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
        return b.call(torch.matmul, x, y, growth=reach(x))
    x = b.value(lambda t: is_float(t) and t.ndim >= 1)
    k, n, dtype = x.tensor.shape[-1], b.choose((4, 1, 3, 8)), x.tensor.dtype
    if kind == "matmul":
        y = b.new_input((k, n), dtype) if b.chance(2) else b.value(lambda t: t.ndim > 0 and t.dtype == dtype)
        return b.call(torch.matmul, x, y, growth=reach(x, y))
    if kind == "addmm":
        y = b.new_input((k, n), dtype)
        z = b.value(lambda t: t.dtype == dtype)
        return b.call(torch.addmm, z, x, y, growth=reach(x, y) + 2, **b.choose(({}, {"beta": 2}, {"alpha": -1, "beta": 0})))
    if kind == "bmm":
        y = b.value(lambda t: t.ndim == 3 and t.dtype == dtype)
        return b.call(torch.bmm, x, y, growth=reach(x, y))
    w = b.new_input((n, k), dtype)
    bias = b.new_input((n,), dtype) if b.chance(2) else None
    return b.call(F.linear, x, w, bias, growth=reach(x, w) + 1)


def reach(*operands: Value) -> float:
    longest = max(max(v.tensor.shape, default=1) for v in operands)
    return longest * max(1.0, *(magnitude(v.tensor) for v in operands))


def join(b: Builder) -> Any:
    x = b.value()
    others = [b.value(lambda t: t.shape == x.tensor.shape) for _ in range(b.integer(1, 2))]
    parts = [x, *others]
    if b.chance(4) and x.tensor.ndim:  # of other lengths
        dim, rest = b.dim(x.tensor), x.tensor
        at = dim % rest.ndim
        more = b.value(
            lambda t: t.ndim == rest.ndim and t.shape[:at] == rest.shape[:at] and t.shape[at + 1 :] == rest.shape[at + 1 :]
        )
        return b.call(torch.cat, [*parts, more], dim)
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
    kind = b.choose(("index_select", "embedding", "index", "gather", "tril", "index_add", "index_copy", "repeat"))
    x = b.value(lambda t: t.ndim > 0 and t.numel() > 0)
    dim = b.dim(x.tensor)
    n = x.tensor.shape[dim]
    if kind in ("tril", "repeat"):
        return b.call(kind, x, *(() if kind == "tril" else (2, *[1] * x.tensor.ndim)))
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
    if isinstance(other, Value) and not representable(other.tensor, x.tensor.dtype):
        raise Rejected
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
    rare_view, identity, curved, ternary, folded, spread, scattered, rotated,
)  # fmt: skip
WRITES: tuple[Kind, ...] = (write, write, write_at)
#: What has a derivative, and numbers that stay small.
DIFFERENTIABLE: tuple[Kind, ...] = (
    binary, view, smooth, reduce, matrix, join, clamp, rare_view, identity, rotated, curved, spread, scattered,
)  # fmt: skip


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


__all__ = ["COMPUTE", "DIFFERENTIABLE", "WRITES", "Kind", "draw_graph", "is_float", "reach", "representable"]
