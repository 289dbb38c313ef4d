"""Gather and scatter: an index for each element, along one dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, collapse, index_code, index_words
from ..kernels.reduction import normal_dims
from ..recipe import Graph, Tensor, Words, grid, product, register_error, spans
from ..registry import lower
from .indexing import MESSAGE, MOST_IN_ORDER, OPERAND_MODES, apart, begin_update, checked_index, in_order


def elementwise_index(graph: Graph, x: Tensor, dim: int, index: Tensor, other: Tensor | None, value: Any, mode: str) -> None:
    """For each element of ``index``: ``other[i] = x[i with dim replaced]`` (get), or the reverse (put, or a reduction)."""
    (axis,) = normal_dims(max(x.ndim, 1), dim)
    if index.numel == 0:
        return
    x_strides = [0 if d == axis else s for d, s in enumerate(x.strides)] or [0]
    size, stride = (x.sizes[axis], x.strides[axis]) if x.ndim else (1, 1)
    shape = index.sizes or (1,)
    walked = {"i": index.strides or (0,), "x": x_strides}
    if other is not None:
        walked["y"] = other.strides or (0,)
    if other is not None and in_order(mode, x):  # only those along `dim` can meet
        lanes = [n for d, n in enumerate(shape) if d != axis]
        others = {name: [s for d, s in enumerate(strides) if d != axis] for name, strides in walked.items()}
        steps = {name: strides[axis] for name, strides in walked.items()}
        for first, count in spans(shape[axis], MOST_IN_ORDER):
            _elementwise(graph, x, index, other, value, mode, (size, stride), lanes, others, (first, count, steps))
        return
    _elementwise(graph, x, index, other, value, mode, (size, stride), shape, walked, None)


def _elementwise(
    graph: Graph,
    x: Tensor,
    index: Tensor,
    other: Tensor | None,
    value: Any,
    mode: str,
    axis: tuple[int, int],
    shape: Sequence[int],
    walked: Mapping[str, Sequence[int]],
    steps: tuple[int, int, dict[str, int]] | None,
) -> None:
    """One launch, an invocation for each element of ``shape``; with ``steps`` (first, count, strides) it takes many.

    Args:
        axis: size and stride of the dimension of ``x`` that is indexed.
        walked: strides of ``index`` (i), ``x`` without that dimension, and ``other`` (y).
    """
    size, stride = axis
    total = product(shape)
    sizes, strides = collapse(shape, list(walked.values()))
    names = list(walked)

    def words(w: Words) -> None:
        w.u32("n", total)
        if steps is not None:
            w.u32("first", steps[0])
            w.u32("last", steps[0] + steps[1])
            for name in names:
                w.u32(f"step_{name}", steps[2][name])
        w.u32("size", size)
        w.u32("stride", stride)
        w.u32("error", register_error("RuntimeError", MESSAGE.format(op=graph.op)))
        if other is None:
            w.number("value", value, x.dtype.cls)
        index_words(w, sizes, dict(zip(names, strides, strict=True)))

    def source(w: Words) -> str:
        at = {name: f"x_{name}" + (f" + t * {w.expr(f'step_{name}')}" if steps is not None else "") for name in names}
        at_x = f"{at['x']} + k_i * {w.stride}"
        v = (
            wgsl.cast(f"ld_y({at['y']})", other.dtype.cls, x.dtype.cls)
            if other is not None
            else w.expr("value", x.dtype.cls)
        )
        move = {"get": f"st_y(x_y, ld_x({at_x}));", "put": f"st_x({at_x}, {v});"}.get(mode, f"acc_x({at_x}, {v});")
        return "\n".join(
            [
                MAIN.format(wg=WORKGROUP),
                f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}",
                index_code(w, len(sizes), names),
                f"for (var t = {w.first}; t < {w.last}; t++) {{" if steps is not None else "",
                checked_index("i", at["i"], index, w.size, w, False),
                move,
                "}" if steps is not None else "",
                "}",
            ]
        )

    args = [("x", x, OPERAND_MODES[mode]), ("i", index, "r"), ("e", graph.error_tensor(), "a")]
    if other is not None:
        args.append(("y", other, "w" if mode == "get" else "r"))
    static = (mode, len(sizes), other is None, steps is not None)
    graph.launch("gather", args, words, source, grid(total, WORKGROUP), static)


def _check_index(graph: Graph, x: Tensor, index: Tensor, dim: int) -> None:
    if index.dtype.cls not in "il":
        raise RuntimeError(f"{graph.op}(): Expected an integer dtype for index, got {index.dtype.name}")
    if index.numel and max(x.ndim, 1) != max(index.ndim, 1):
        raise RuntimeError(
            f"{graph.op}: Index tensor must have the same number of dimensions as input tensor ({index} and {x})"
        )
    if index.numel and x.ndim and index.ndim:
        (axis,) = normal_dims(x.ndim, dim)
        if any(d != axis and n > x.sizes[d] for d, n in enumerate(index.sizes)):
            raise RuntimeError(
                f"{graph.op}: Size does not match: expected index {list(index.sizes)} to be no larger than self "
                f"{list(x.sizes)} "
                f"apart from dimension {axis}"
            )


@lower("gather", inplace=False)
def _gather(graph: Graph, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    _check_index(graph, x, index, dim)
    out = graph.new(index.sizes, x.dtype)
    elementwise_index(graph, x, dim, index, out, None, "get")
    return out


def scatter(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor | None, value: Any, mode: str) -> Tensor:
    _check_index(graph, x, index, dim)
    out = begin_update(graph, x)
    index = apart(graph, index, out)
    if source is not None:
        if source.dtype is not x.dtype:
            raise RuntimeError(f"{graph.op}(): self ({x.dtype.name}) and src ({source.dtype.name}) must have the same dtype")
        source = apart(graph, source, out)
        if index.numel == 0:
            return out
        if max(source.ndim, 1) != max(index.ndim, 1):
            raise RuntimeError(
                f"{graph.op}: Index tensor must have the same number of dimensions as src tensor ({index} and {source})"
            )
        if any(a > b for a, b in zip(index.sizes, source.sizes, strict=True)):
            raise RuntimeError(
                f"{graph.op}: Expected index {list(index.sizes)} to be no larger than src {list(source.sizes)}"
            )
        source = source.view(index.sizes, source.strides)
    elementwise_index(graph, out, dim, index, source, value, mode)
    return out


@lower("scatter.src", out="src_out")
def _scatter_src(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return scatter(graph, x, dim, index, source, None, "put")


@lower("scatter.value", out="value_out")
def _scatter_value(graph: Graph, x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return scatter(graph, x, dim, index, None, value, "put")


@lower("scatter_add")
def _scatter_add(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return scatter(graph, x, dim, index, source, None, "add")
