"""Scatter and index updates that combine what meets at one place: sum, product, mean, maximum, minimum."""

from __future__ import annotations

from typing import Any

import torch

from ..kernels.pointwise import converted, copy_into, emit, private_target
from ..recipe import Graph, Tensor
from ..registry import lower
from ..wgsl import BOOL, F32, I32, I64, DType
from .creation import fill
from .indexing import along, apart, index_launch, line
from .scatter import elementwise_index, scatter

_MODES = {"sum": "add", "add": "add", "prod": "prod", "multiply": "prod", "mean": "add", "amax": "amax", "amin": "amin"}


def _identity(mode: str, d: DType) -> float:
    """What combines to the other value."""
    if mode in ("add", "prod"):
        return int(mode == "prod")
    low = mode == "amax"
    if d.is_float:
        return float("-inf") if low else float("inf")
    if d is BOOL:
        return int(not low)
    info = torch.iinfo(d.torch)
    return info.min if low else info.max


def _mode(graph: Graph, reduce: str, allowed: tuple[str, ...]) -> str:
    if reduce not in allowed:
        raise RuntimeError(f"{graph.op}: reduce argument must be one of {', '.join(allowed)}, got {reduce}")
    return _MODES[reduce]


def _unsupported(x: Tensor, mode: str) -> bool:
    """64-bit atomics do not exist in WGSL, sums apart: the CPU does it."""
    return x.dtype is I64 and mode != "add"


def _working(graph: Graph, x: Tensor, mode: str) -> Tensor:
    """A copy of ``x`` to accumulate in: sums and products of half precisions are kept in float32."""
    dtype = F32 if x.dtype.is_float and mode in ("add", "prod") else x.dtype
    out = graph.new(x.sizes, dtype)
    copy_into(graph, x, out)
    return out


def _mean(graph: Graph, total: Tensor, counts: Tensor, dtype: DType) -> Tensor:
    """``total / counts`` (rounded down for integers), where nothing was counted ``total``."""
    out = graph.new(total.sizes, dtype)
    forms = {
        "f": "quotient_({0}, f32(max({1}, 1)))",
        "i": "divf32({0}, max({1}, 1))",
        "l": "divf64({0}, max64({1}, vec2<u32>(1u, 0u)))",
    }
    cls = total.dtype.cls
    emit(graph, forms[cls], [total, counts], [cls, "l" if cls == "l" else "i"], cls, out, "mean")
    return out


@lower("scatter_reduce.two")
def _scatter_reduce(
    graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    mode = _mode(graph, reduce, ("sum", "prod", "mean", "amax", "amin"))
    if _unsupported(x, mode):
        return NotImplemented
    if x.dtype is not source.dtype:
        raise RuntimeError(f"{graph.op}(): self ({x.dtype.name}) and src ({source.dtype.name}) must have the same dtype")
    private_target(graph)
    out = _working(graph, x, mode)
    if not include_self:
        elementwise_index(graph, out, dim, index, None, _identity(mode, x.dtype), "put")
    graph.target = out  # scatter then works in place
    result = scatter(graph, out, dim, index, converted(graph, source, out.dtype), None, mode)
    graph.target = None
    if reduce == "mean":
        counts = fill(graph, graph.new(x.sizes, I64 if x.dtype is I64 else I32), 1)
        if not include_self:
            elementwise_index(graph, counts, dim, index, None, 0, "put")
        ones = fill(graph, graph.new((), counts.dtype), 1).expand(index.sizes)
        elementwise_index(graph, counts, dim, index, ones, None, "add")
        return _mean(graph, result, counts, x.dtype)
    return converted(graph, result, x.dtype)


@lower("scatter.reduce", out="reduce_out")
def _scatter_with(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str) -> Tensor:
    mode = _mode(graph, reduce, ("add", "multiply"))
    return NotImplemented if _unsupported(x, mode) else scatter(graph, x, dim, index, source, None, mode)


@lower("scatter.value_reduce", out="value_reduce_out")
def _scatter_value_with(graph: Graph, x: Tensor, dim: int, index: Tensor, value: Any, reduce: str) -> Tensor:
    mode = _mode(graph, reduce, ("add", "multiply"))
    return NotImplemented if _unsupported(x, mode) else scatter(graph, x, dim, index, None, value, mode)


@lower("index_reduce")
def _index_reduce(
    graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    mode = _mode(graph, reduce, ("prod", "mean", "amax", "amin"))
    if _unsupported(x, mode):
        return NotImplemented
    if x.dtype is not source.dtype:
        raise RuntimeError(f"{graph.op}: self ({x.dtype.name}) and source ({source.dtype.name}) must have the same dtype")
    private_target(graph)
    out = _working(graph, x, mode)
    where, _ = along(graph, line(out), dim, apart(graph, index, out))
    source = line(source)
    if tuple(source.sizes) != where.result:
        raise RuntimeError(f"{graph.op}: source of shape {list(source.sizes)} must be {list(where.result)}")

    def put(value: float, to: Tensor, mode: str) -> None:
        one = fill(graph, graph.new((1,), to.dtype), value)
        index_launch(graph, where, line(to), one.expand(where.result), mode, False)

    if not include_self:
        put(_identity(mode, x.dtype), out, "put")
    index_launch(graph, where, line(out), converted(graph, source, out.dtype), mode, False)
    if reduce == "mean":
        counts = fill(graph, graph.new(x.sizes, I64 if x.dtype is I64 else I32), 1)
        if not include_self:
            put(0, counts, "put")
        put(1, counts, "add")
        return _mean(graph, out, counts, x.dtype)
    return converted(graph, out, x.dtype)
