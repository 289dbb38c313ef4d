"""Copies on the device and concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from ..recipe import Graph, Tensor
from ..registry import lower
from .pointwise import copy_into, result_dtype


@lower("webgpu::copy_")
def _copy(graph: Graph, dst: Tensor, src: Tensor) -> Tensor:
    copy_into(graph, src, dst)
    return dst


@lower("cat", inplace=False)
def _cat(graph: Graph, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    kept = [t for t in tensors if t.sizes != (0,)]
    dtype = result_dtype(*tensors)
    if not kept:
        return graph.new(tensors[0].sizes, dtype)
    ndim = kept[0].ndim
    d = dim + ndim if dim < 0 else dim
    if not 0 <= d < ndim:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})")
    for t in kept:
        if t.ndim != ndim or any(a != b for i, (a, b) in enumerate(zip(t.sizes, kept[0].sizes, strict=True)) if i != d):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {d}. Expected {list(kept[0].sizes)} but got {list(t.sizes)}"
            )
    sizes = list(kept[0].sizes)
    sizes[d] = sum(t.sizes[d] for t in kept)
    out = graph.new(sizes, dtype)
    start = 0
    for t in kept:
        if t.numel:
            copy_into(graph, t, out.narrow(d, start, t.sizes[d]))
        start += t.sizes[d]
    return out
