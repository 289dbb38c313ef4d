"""Advanced indexing, embedding, and the index_* ops (gather and scatter: scatter.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import wgsl
from ..kernels.pointwise import (
    LINEAR,
    MAIN,
    WORKGROUP,
    Operand,
    broadcast_shapes,
    collapse,
    compute,
    copy_into,
    dtype_of,
    emit,
    index_code,
    index_words,
)
from ..kernels.reduction import normal_dims
from ..recipe import Graph, Scalar, Tensor, Words, grid, product, register_error, spans
from ..registry import lower
from ..runtime import target
from ..wgsl import BOOL, U8

MOST_IN_ORDER = 4096  # updates one invocation makes in a launch: a launch must not last for seconds
MOST_INDICES = 5  # with source, destination and error buffer: the eight bindings every adapter has
MESSAGE = "index {{value}} is out of bounds for dimension with size {{size}} in {op}"


OPERAND_MODES = {"get": "r", "put": "w", "add": "+", "prod": "*", "amax": ">", "amin": "<"}


def in_order(mode: str, x: Tensor) -> bool:
    """Whether updates that meet at one element must be made one after the other, as the CPU makes them.

    The order in which a GPU makes them changes a float's sum, and which of several values is the last.
    """
    matters = mode == "put" or (mode in ("add", "prod") and x.dtype.is_float)
    return matters and torch.are_deterministic_algorithms_enabled()


def begin_update(graph: Graph, x: Tensor) -> Tensor:
    """What an updating op writes to: ``x`` itself for the in-place form, else a copy of it."""
    target = graph.target
    if target is not None and target.buffer == x.buffer and target.sizes == x.sizes and target.strides == x.strides:
        return x
    out = graph.new(x.sizes, x.dtype)
    copy_into(graph, x, out)
    return out


def apart(graph: Graph, t: Tensor, written: Tensor) -> Tensor:
    """``t``, copied if it shares its buffer with a tensor that the launch writes."""
    if t.buffer != written.buffer:
        return t
    copy = graph.new(t.sizes, t.dtype)
    copy_into(graph, t, copy)
    return copy


def checked_index(name: str, at: str, t: Tensor, size: str, w: Words, negative: bool) -> str:
    """WGSL that loads an index into ``k_<name>`` (u32), wraps negatives, and reports and skips one out of range."""
    lines = [
        f"let given_{name} = {wgsl.cast(f'ld_{name}({at})', t.dtype.cls, 'l')};",
        f"var raw_{name} = given_{name};",
    ]
    if negative:
        lines.append(f"if (neg_(raw_{name})) {{ raw_{name} = add64(raw_{name}, vec2<u32>({size}, 0u)); }}")
    lines.append(f"if (raw_{name}.y != 0u || raw_{name}.x >= {size}) {{ fail_e({w.error}, given_{name}, {size}); return; }}")
    lines.append(f"let k_{name} = raw_{name}.x;")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------- advanced indexing


class Indexed:
    """The geometry of ``x[indices]``: which dimensions are indexed, and the shape of the result."""

    def __init__(self, graph: Graph, x: Tensor, indices: Sequence[Tensor | None]) -> None:
        for t in indices:
            if t is not None and (t.dtype.is_float or t.dtype.cls == "b" or t.dtype.itemsize < 4):
                raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        if len(indices) > x.ndim:
            raise IndexError(f"too many indices for tensor of dimension {x.ndim} (got {len(indices)})")
        given = [(d, t) for d, t in enumerate(indices) if t is not None]
        self.dims = [d for d, _ in given]
        self.shape = broadcast_shapes(*(t.sizes for _, t in given), ())
        self.indices = [t.expand(self.shape) for _, t in given]
        self.rest = [d for d in range(x.ndim) if d not in self.dims]
        together = self.dims == list(range(self.dims[0], self.dims[0] + len(self.dims)))
        self.lead = self.dims[0] if together else 0  # where the index dimensions stand in the result
        rest_sizes = [x.sizes[d] for d in self.rest]
        self.result = (*rest_sizes[: self.lead], *self.shape, *rest_sizes[self.lead :])

    def split(self, t: Tensor) -> tuple[list[int], list[int]]:
        """Strides of a result-shaped tensor, of the index dimensions and of the others."""
        k = len(self.shape)
        strides = list(t.strides)
        return strides[self.lead : self.lead + k], strides[: self.lead] + strides[self.lead + k :]


def index_launch(graph: Graph, where: Indexed, x: Tensor, other: Tensor, mode: str, negative: bool) -> None:
    """Moves elements between ``x`` (indexed) and ``other`` (result-shaped). ``mode``: ``get``, ``put`` or a reduction."""
    j_count, r_count = product(where.shape), product([x.sizes[d] for d in where.rest])
    if j_count * r_count == 0:
        return
    limit = target().limits["maxStorageBufferBindingSize"]
    size = x.sizes[where.dims[0]]
    step = size
    while step > 1 and (x.extent - (size - step) * x.strides[where.dims[0]]) * x.dtype.itemsize + 256 > limit:
        step = -(-step // 2)
    ordered = in_order(mode, x)
    for low, length in spans(size, step):
        for first, count in spans(j_count, MOST_IN_ORDER) if ordered else [(0, j_count)]:
            _index_window(graph, where, x, other, mode, negative, (low, length), (first, count), ordered)


def _index_window(
    graph: Graph,
    where: Indexed,
    x: Tensor,
    other: Tensor,
    mode: str,
    negative: bool,
    window: tuple[int, int],
    some: tuple[int, int],
    ordered: bool,
) -> None:
    """One launch: places of the first indexed dimension within ``window``, ``some`` of the indices (first, count).

    Each invocation takes one index and one element of the other dimensions; ``ordered`` ones take all of the indices.
    """
    (low, length), (first, count) = window, some
    r_count = product([x.sizes[d] for d in where.rest])
    names = [f"i{k}" for k in range(len(where.indices))]
    other_j, other_r = where.split(other)
    j_sizes, j_strides = collapse(where.shape, [other_j, *(t.strides for t in where.indices)])
    r_sizes, r_strides = collapse([x.sizes[d] for d in where.rest], [[x.strides[d] for d in where.rest], other_r])
    whole = length == x.sizes[where.dims[0]]

    def words(w: Words) -> None:
        w.u32("n", r_count if ordered else count * r_count)
        w.u32("R", r_count)
        w.u32("first", first)
        w.u32("last", first + count)
        w.u32("error", register_error("IndexError", MESSAGE.format(op=graph.op)))
        w.u32("low", low)
        w.u32("length", length)
        for name, d in zip(names, where.dims, strict=True):
            w.u32(f"{name}_size", x.sizes[d])
            w.u32(f"{name}_stride", x.strides[d])
        index_words(w, j_sizes, dict(zip(["y", *names], j_strides, strict=True)), "j")
        index_words(w, r_sizes, dict(zip("xy", r_strides, strict=True)), "r")

    def source(w: Words) -> str:
        lines = [
            MAIN.format(wg=WORKGROUP),
            f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}",
            index_code(w, len(r_sizes), ["x", "y"], f"i % {w.R}", "r"),
            f"for (var t = {w.first}; t < {w.last}; t++) {{" if ordered else "",
            index_code(w, len(j_sizes), ["y", *names], "t" if ordered else f"i / {w.R}", "j"),
        ]
        lines += [
            checked_index(name, f"x_j{name}", t, w.expr(f"{name}_size"), w, negative)
            for name, t in zip(names, where.indices, strict=True)
        ]
        if not whole:
            skip = "continue" if ordered else "return"
            lines.append(f"if (k_i0 < {w.low} || k_i0 - {w.low} >= {w.length}) {{ {skip}; }}")
        place = "k_i0" if whole else f"(k_i0 - {w.low})"
        terms = [f"{place} * {w.i0_stride}"] + [f"k_{m} * {w.expr(f'{m}_stride')}" for m in names[1:]]
        at_x, at_y = " + ".join(["x_rx", *terms]), "x_jy + x_ry"
        value = wgsl.cast(f"ld_y({at_y})", other.dtype.cls, x.dtype.cls)
        lines.append(
            {
                "get": f"st_y({at_y}, ld_x({at_x}));",
                "put": f"st_x({at_x}, {value});",
            }.get(mode, f"acc_x({at_x}, {value});")
        )
        return "\n".join([*lines, "}" if ordered else "", "}"])

    part = x if whole else x.narrow(where.dims[0], low, length)
    args = [
        ("x", part, OPERAND_MODES[mode]),
        ("y", other, "w" if mode == "get" else "r"),
        ("e", graph.error_tensor(), "a"),
        *((name, t, "r") for name, t in zip(names, where.indices, strict=True)),
    ]
    static = (mode, negative, whole, len(names), len(j_sizes), len(r_sizes), ordered)
    graph.launch("index", args, words, source, grid(r_count if ordered else count * r_count, WORKGROUP), static)


def _needs_host(indices: Sequence[Tensor | None]) -> bool:
    """Masks have results whose size only the data tells; CPU indices must be moved first."""
    given = [t for t in indices if t is not None]
    return any(t.dtype in (BOOL, U8) or t.on_cpu for t in given) or len(given) > MOST_INDICES


def _plain(indices: Sequence[Any]) -> list[Tensor | None]:
    return [t if t is None or isinstance(t, Tensor) else None for t in indices]


@lower("index.Tensor", inplace=False, mixed=True)
def _index(graph: Graph, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | str:
    if any(t is not None and not isinstance(t, Tensor) for t in indices) or _needs_host(_plain(indices)):
        return "webgpu::index_on_host"
    if all(t is None for t in indices):
        return compute(graph, "{0}", [x], [x.dtype.cls], x.dtype.cls, x.dtype, "copy")
    where = Indexed(graph, x, indices)
    out = graph.new(where.result, x.dtype)
    _check_empty_dims(x, where)
    index_launch(graph, where, x, out, "get", True)
    return out


def _check_empty_dims(x: Tensor, where: Indexed) -> None:
    if product(where.shape) and any(x.sizes[d] == 0 for d in where.dims):
        raise IndexError("index is out of bounds for dimension with size 0")


_PUT_ON_HOST = {
    "index_put": "webgpu::index_put_on_host",
    "_unsafe_index_put": "webgpu::index_put_on_host",
    "index_put_": "webgpu::index_put_on_host_",
    "_index_put_impl_": "webgpu::index_put_impl_on_host_",
}


@lower("index_put", "_index_put_impl_", "_unsafe_index_put", mixed=True)
def _index_put(
    graph: Graph,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Operand,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor | str:
    scalars = any(t is not None and not isinstance(t, Tensor) for t in indices)
    if not isinstance(values, Tensor) or scalars or values.on_cpu or _needs_host(indices):
        return _PUT_ON_HOST[graph.op]
    if values.dtype is not x.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {x.dtype.name} and {values.dtype.name}"
        )
    out = begin_update(graph, x)
    where = Indexed(graph, x, [t if t is None else apart(graph, t, out) for t in indices])
    _check_empty_dims(x, where)
    index_launch(graph, where, out, apart(graph, values, out).expand(where.result), "add" if accumulate else "put", True)
    return out


@lower("embedding")
def _embedding(graph: Graph, weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    if weight.ndim != 2:
        raise RuntimeError(f"'weight' must be 2-D, got shape {list(weight.sizes)}")
    where = Indexed(graph, weight, [indices])
    out = graph.new((*indices.sizes, *weight.sizes[1:]), weight.dtype)
    index_launch(graph, where, weight, out, "get", False)
    return out


@lower("embedding_dense_backward")
def _embedding_backward(graph: Graph, grad: Tensor, indices: Tensor, rows: int, padding: int, by_count: bool) -> Tensor:
    if by_count:
        return NotImplemented
    out = graph.new((rows, grad.sizes[-1]), grad.dtype)
    emit(graph, "{0}", [0], [grad.dtype.cls], grad.dtype.cls, out, "fill")
    where = Indexed(graph, out, [indices])
    index_launch(graph, where, out, grad, "add", False)
    if padding >= 0:
        emit(graph, "{0}", [0], [grad.dtype.cls], grad.dtype.cls, out.narrow(0, padding, 1), "fill")
    return out


def along(graph: Graph, x: Tensor, dim: int, index: Tensor) -> tuple[Indexed, int]:
    """``x`` must have a dimension (see ``line``)."""
    (axis,) = normal_dims(x.ndim, dim)
    if index.dtype.cls not in "il" or index.dtype.itemsize < 4:
        raise RuntimeError(f"{graph.op}(): Expected dtype int32 or int64 for index, got {index.dtype.name}")
    if index.ndim > 1:
        raise IndexError(f"{graph.op}: Index is supposed to be a vector, got shape {list(index.sizes)}")
    line = index if index.ndim == 1 else index.view((1,), (1,))
    return Indexed(graph, x, [*([None] * axis), line]), axis


def line(t: Tensor) -> Tensor:
    """A 0-dim tensor as a vector of one element; ATen's index ops treat them alike."""
    return t if t.ndim else t.view((1,), (1,))


@lower("index_select", inplace=False)
def _index_select(graph: Graph, x: Tensor, dim: int, index: Tensor) -> Tensor:
    where, _ = along(graph, line(x), dim, index)
    if x.ndim == 0 and where.shape != (1,):
        raise IndexError(f"{graph.op}(): Index to scalar can have only 1 value, got {product(where.shape)} value(s)")
    out = graph.new(where.result if x.ndim else (), x.dtype)
    _check_empty_dims(line(x), where)
    index_launch(graph, where, line(x), line(out), "get", False)
    return out


def _index_update(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, mode: str) -> Tensor:
    out = begin_update(graph, x)
    if source.dtype is not x.dtype:
        raise RuntimeError(f"{graph.op}(): self ({x.dtype.name}) and source ({source.dtype.name}) must have the same dtype")
    where, axis = along(graph, line(x), dim, apart(graph, index, out))
    source = line(source) if x.ndim <= 1 else source
    if tuple(source.sizes) != where.result:
        raise RuntimeError(
            f"{graph.op}: source of shape {list(source.sizes)} must be {list(where.result)} (dim {axis}, "
            f"{where.shape[0]} indices)"
        )
    index_launch(graph, where, line(out), apart(graph, source, out), mode, False)
    return out


@lower("index_copy")
def _index_copy(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _index_update(graph, x, dim, index, source, "put")


@lower("index_add")
def _index_add(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    if alpha != 1:
        cls = x.dtype.cls
        form = {"l": "mul64({0}, {1})", "b": "({0} && {1})"}.get(cls, "({0} * {1})")
        scaled = graph.new(source.sizes, x.dtype)
        emit(graph, form, [source, alpha], [cls] * 2, cls, scaled, "scale")
        source = scaled
    return _index_update(graph, x, dim, index, source, "add")


def _plain_number(value: Any) -> Any:
    return value.value if isinstance(value, Scalar) else value


@lower("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(graph: Graph, x: Tensor, dim: int, index: Tensor, value: Operand) -> Tensor:
    out = begin_update(graph, x)
    where, _ = along(graph, line(x), dim, apart(graph, index, out))
    if dtype_of(value).is_float and not x.dtype.is_float:
        value = bool(_plain_number(value)) if x.dtype is BOOL else int(_plain_number(value))
    filled = graph.new((1,), x.dtype)
    emit(graph, "{0}", [value], [x.dtype.cls], x.dtype.cls, filled, "fill")
    index_launch(graph, where, line(out), filled.expand(where.result), "put", True)
    return out
