"""Elements in another order or place: flips, rolls, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import wgsl
from ..kernels.pointwise import (
    LINEAR,
    MAIN,
    WORKGROUP,
)
from ..kernels.reduction import normal_dims
from ..recipe import Graph, Tensor, Words, grid
from ..registry import lower


def _rearranged(graph: Graph, x: Tensor, out: Tensor, name: str, words: Any, coordinate: Any) -> Tensor:
    """``out[i] = x[f(i)]`` where ``coordinate(w, d)`` gives WGSL for the source coordinate of dimension d from ``c<d>``."""
    if out.numel == 0:
        return out

    def fill(w: Words) -> None:
        w.u32("n", out.numel)
        for d in range(out.ndim):
            w.u32(f"s{d}", out.sizes[d])
            w.u32(f"x_{d}", x.strides[d])
            w.u32(f"o_{d}", out.strides[d])
        words(w)

    def source(w: Words) -> str:
        lines = [MAIN.format(wg=WORKGROUP), f"var i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}"]
        for d in range(out.ndim - 1, -1, -1):
            size = w.expr(f"s{d}")
            lines.append(f"let c{d} = i % {size}; i = i / {size};")
        at_x = " + ".join(f"({coordinate(w, d)}) * {w.expr(f'x_{d}')}" for d in range(out.ndim)) or "0u"
        at_o = " + ".join(f"c{d} * {w.expr(f'o_{d}')}" for d in range(out.ndim)) or "0u"
        return "\n".join([*lines, f"st_o({at_o}, ld_x({at_x}));", "}"])

    graph.launch(name, [("x", x, "r"), ("o", out, "w")], fill, source, grid(out.numel, WORKGROUP), (out.ndim,))
    return out


@lower("flip", inplace=False)
def _flip(graph: Graph, x: Tensor, dims: Sequence[int]) -> Tensor:
    axes = normal_dims(x.ndim, list(dims)) if dims else ()

    def words(w: Words) -> None:
        for d in range(x.ndim):
            w.u32(f"f{d}", int(d in axes))

    def coordinate(w: Words, d: int) -> str:
        return f"select(c{d}, {w.expr(f's{d}')} - 1u - c{d}, {w.expr(f'f{d}')} == 1u)"

    return _rearranged(graph, x, graph.new(x.sizes, x.dtype), "flip", words, coordinate)


@lower("roll", inplace=False)
def _roll(graph: Graph, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if len(shifts) == 0:
        raise RuntimeError("`shifts` required")
    if len(dims) != len(shifts) and (dims or len(shifts) != 1):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims: {len(dims)}")
    if not dims:
        flat = x if x.ndim == 1 else None
        if flat is None:
            return NotImplemented
        dims = [0]
    moved = [0] * x.ndim
    for shift, d in zip(shifts, dims, strict=True):
        if x.ndim == 0:
            raise IndexError(f"Dimension specified as {d} but tensor has no dimensions")
        (axis,) = normal_dims(x.ndim, d)
        moved[axis] += shift

    def words(w: Words) -> None:
        for d in range(x.ndim):
            w.u32(f"f{d}", -moved[d] % max(x.sizes[d], 1))

    def coordinate(w: Words, d: int) -> str:
        return f"(c{d} + {w.expr(f'f{d}')}) % {w.expr(f's{d}')}"

    return _rearranged(graph, x, graph.new(x.sizes, x.dtype), "roll", words, coordinate)


def _triangle(graph: Graph, x: Tensor, diagonal: int, upper: bool) -> Tensor:
    if x.ndim < 2:
        raise RuntimeError(f"{graph.op}: input tensor must have at least 2 dimensions, got shape {list(x.sizes)}")
    out = graph.new(x.sizes, x.dtype)
    if x.numel == 0:
        return out
    sizes, strides = x.sizes, (x.strides, out.strides)

    def words(w: Words) -> None:
        w.u32("n", x.numel)
        w.u32("diagonal", diagonal)
        for d in range(x.ndim):
            w.u32(f"s{d}", sizes[d])
            w.u32(f"x_{d}", strides[0][d])
            w.u32(f"o_{d}", strides[1][d])

    def source(w: Words) -> str:
        lines = [MAIN.format(wg=WORKGROUP), f"var i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}"]
        for d in range(x.ndim - 1, -1, -1):
            size = w.expr(f"s{d}")
            lines.append(f"let c{d} = i % {size}; i = i / {size};")
        at_x = " + ".join(f"c{d} * {w.expr(f'x_{d}')}" for d in range(x.ndim))
        at_o = " + ".join(f"c{d} * {w.expr(f'o_{d}')}" for d in range(x.ndim))
        offset = f"i32(c{x.ndim - 1}) - i32(c{x.ndim - 2})"
        keep = f"{offset} {'>=' if upper else '<='} {w.expr('diagonal', 'i')}"
        zero = wgsl.ZERO[x.dtype.cls]
        return "\n".join([*lines, f"var v = ld_x({at_x});\nif (!({keep})) {{ v = {zero}; }}\nst_o({at_o}, v);", "}"])

    graph.launch("triangle", [("x", x, "r"), ("o", out, "w")], words, source, grid(x.numel, WORKGROUP), (x.ndim, upper))
    return out


@lower("tril")
def _tril(graph: Graph, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(graph, x, diagonal, False)


@lower("triu")
def _triu(graph: Graph, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(graph, x, diagonal, True)
