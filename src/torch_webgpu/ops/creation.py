"""Filling and ranges."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, Operand, check_fits, dtype_of, emit
from ..recipe import Graph, Scalar, Tensor, Words, grid
from ..registry import fallback, lower
from ..wgsl import F32, I64, DType


def fill(graph: Graph, out: Tensor, value: Operand) -> Tensor:
    """``out[...] = value``."""
    c = out.dtype.cls
    if dtype_of(value).is_float and c != "f":
        number: Any = value.value if isinstance(value, Scalar) else value
        value = bool(number) if c == "b" else int(number)
    check_fits(value, out.dtype)
    emit(graph, "{0}", [value], [c], c, out, "fill")
    return out


@lower("fill_.Scalar", "fill_.Tensor")
def _fill(graph: Graph, x: Tensor, value: Operand) -> Tensor:
    if isinstance(value, Tensor):
        emit(graph, "{0}", [value], [value.dtype.cls], value.dtype.cls, x, "copy")
        return x
    return fill(graph, x, value)


@lower("zero_")
def _zero(graph: Graph, x: Tensor) -> Tensor:
    return fill(graph, x, 0)


def _number(x: Any) -> Any:
    return x.value if isinstance(x, Scalar) else x


def _range(graph: Graph, start: Any, end: Any, step: Any, dtype: DType) -> Tensor:
    first, last, by = _number(start), _number(end), _number(step)
    if any(isinstance(v, float) and not math.isfinite(v) for v in (first, last)):
        raise RuntimeError(f"unsupported range: {first} -> {last}")
    if by == 0:
        raise RuntimeError("step must be nonzero")
    if dtype is I64:  # other integers are counted as floats, then truncated
        first, last, by = (int(v) if isinstance(v, float) else v for v in (first, last, by))
        if by == 0:
            raise ValueError("step must be nonzero: a whole number of steps is counted, and the step truncates to 0")
    if (last - first) * by < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    n = math.ceil((last - first) / by) if isinstance(first + last + by, float) else -(-(last - first) // by)
    out = graph.new((n,), dtype)
    if n == 0:
        return out
    if n == 1:
        return fill(graph, out, first)  # which the compiler fuses
    cls = "l" if dtype.cls != "f" else "f"

    def words(w: Words) -> None:
        w.u32("n", n)
        w.number("start", first, cls)
        w.number("step", by, cls)

    def source(w: Words) -> str:
        a, b = w.expr("start", cls), w.expr("step", cls)
        value = f"add64({a}, mul64({b}, vec2<u32>(i, 0u)))" if cls == "l" else f"({a} + f32(i) * {b})"
        return (
            MAIN.format(wg=WORKGROUP)
            + f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}\n"
            + f"st_o(i, {wgsl.cast(value, cls, dtype.cls)});\n}}"
        )

    graph.launch("arange", [("o", out, "w")], words, source, grid(n, WORKGROUP), cls)
    return out


def _range_dtype(dtype: int | None, *numbers: Any) -> DType:
    if dtype is not None:
        return wgsl.DTYPES[dtype]
    whole = all(not dtype_of(x).is_float for x in numbers)
    return I64 if whole else wgsl.BY_TORCH.get(torch.get_default_dtype(), F32)


@lower("arange.start_step", out="none")
def _arange3(graph: Graph, start: Any, end: Any, step: Any = 1, dtype: int | None = None, *_: Any) -> Tensor:
    return _range(graph, start, end, step, _range_dtype(dtype, start, end, step))


@lower("arange.start", out="none")
def _arange2(graph: Graph, start: Any, end: Any, dtype: int | None = None, *_: Any) -> Tensor:
    return _range(graph, start, end, 1, _range_dtype(dtype, start, end))


@lower("arange", out="none")
def _arange1(graph: Graph, end: Any, dtype: int | None = None, *_: Any) -> Tensor:
    return _range(graph, 0, end, 1, _range_dtype(dtype, end))


@lower("linspace", out="none")
def _linspace(graph: Graph, start: Any, end: Any, steps: int, dtype: int | None = None, *_: Any) -> Tensor:
    first, last = _number(start), _number(end)
    by = (last - first) / max(steps - 1, 1)
    d = wgsl.DTYPES[dtype] if dtype is not None else F32
    out = graph.new((steps,), d)
    if steps == 0:
        return out

    def words(w: Words) -> None:
        w.u32("n", steps)
        w.f32("start", first)
        w.f32("end", last)
        w.f32("step", by)

    def source(w: Words) -> str:
        a, b, s = w.expr("start", "f"), w.expr("end", "f"), w.expr("step", "f")
        value = f"select({b} - f32({w.n} - 1u - i) * {s}, {a} + f32(i) * {s}, i < {w.n} / 2u || {w.n} == 1u)"
        return (
            MAIN.format(wg=WORKGROUP)
            + f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}\n"
            + f"st_o(i, {wgsl.cast(value, 'f', d.cls)});\n}}"
        )

    graph.launch("linspace", [("o", out, "w")], words, source, grid(steps, WORKGROUP))
    return out


fallback(
    "powers of float64, which WGSL does not have",
    "logspace",
    "logspace.out",
    *(f"logspace.{form}{out}" for form in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor") for out in ("", "_out")),
)
