"""Reducing ops: sums, products, extrema and their positions, moments and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import wgsl
from ..kernels.pointwise import emit
from ..kernels.reduction import Reducer, arg_extremum, extremum, moments, normal_dims, prod, reduce, reduced_shape, total
from ..recipe import Graph, Scalar, Tensor, product
from ..registry import lower
from ..wgsl import BOOL, I64, DType


def _sum_dtype(x: Tensor, dtype: int | None) -> DType:
    if dtype is not None:
        return wgsl.DTYPES[dtype]
    return x.dtype if x.dtype.is_float else I64


def _accumulate(graph: Graph, make: Callable[[str], Reducer], x: Tensor, dims: Any, keepdim: bool, dtype: DType) -> Tensor:
    cls = "f" if dtype.is_float else "l"
    return reduce(graph, make(cls), x, normal_dims(x.ndim, dims), keepdim, [dtype])[0]


@lower("sum", "sum.dim_IntList", inplace=False)
def _sum_op(graph: Graph, x: Tensor, dims: Any = None, keepdim: Any = False, dtype: int | None = None) -> Tensor:
    if graph.op in ("sum", "sum.out"):
        dims, keepdim, dtype = None, False, dims
    return _accumulate(graph, total, x, dims, keepdim, _sum_dtype(x, dtype))


@lower("prod", "prod.dim_int", inplace=False)
def _prod_op(graph: Graph, x: Tensor, dims: Any = None, keepdim: bool = False, dtype: int | None = None) -> Tensor:
    if graph.op in ("prod", "prod.out"):
        dims, keepdim, dtype = None, False, dims
    return _accumulate(graph, prod, x, dims, keepdim, _sum_dtype(x, dtype))


@lower("mean", "mean.dim", inplace=False)
def _mean(graph: Graph, x: Tensor, dims: Any = None, keepdim: Any = False, dtype: int | None = None) -> Tensor:
    if not graph.op.startswith("mean.dim") and graph.op != "mean.out":
        dims, keepdim, dtype = None, False, dims
    d = wgsl.DTYPES[dtype] if dtype is not None else x.dtype
    if not d.is_float:
        raise RuntimeError(f"mean(): could not infer output dtype. Input dtype must be floating point, got {d.name}")
    axes = normal_dims(x.ndim, dims)
    count = product([x.sizes[i] for i in axes])
    if count == 0:
        out = graph.new(reduced_shape(x, axes, keepdim), d)
        emit(graph, "{0}", [float("nan")], ["f"], "f", out, "fill")
        return out
    return reduce(graph, total("f", "quotient_(a, {scale})"), x, axes, keepdim, [d], scale=count)[0]


def _check_not_empty(graph: Graph, x: Tensor, axes: Sequence[int]) -> None:
    if product([x.sizes[i] for i in axes]) == 0 and product([n for i, n in enumerate(x.sizes) if i not in axes]) != 0:
        raise IndexError(
            f"{graph.op}(): Expected reduction dim to have non-zero size, got shape {list(x.sizes)}; specify a dim"
        )


@lower("amax", inplace=False)
def _amax(graph: Graph, x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    axes = normal_dims(x.ndim, dims)
    if not dims and x.numel == 0:
        raise RuntimeError(f"{graph.op}(): Expected reduction dim to be specified for input.numel() == 0. Specify a dim")
    _check_not_empty(graph, x, axes)
    return reduce(graph, extremum(x.dtype.cls, True), x, axes, keepdim, [x.dtype])[0]


@lower("amin", inplace=False)
def _amin(graph: Graph, x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    axes = normal_dims(x.ndim, dims)
    if not dims and x.numel == 0:
        raise RuntimeError(f"{graph.op}(): Expected reduction dim to be specified for input.numel() == 0. Specify a dim")
    _check_not_empty(graph, x, axes)
    return reduce(graph, extremum(x.dtype.cls, False), x, axes, keepdim, [x.dtype])[0]


@lower("max", out="unary_out", inplace=False)
def _max(graph: Graph, x: Tensor) -> Tensor:
    return _amax(graph, x)


@lower("min", out="unary_out", inplace=False)
def _min(graph: Graph, x: Tensor) -> Tensor:
    return _amin(graph, x)


def _with_index(graph: Graph, x: Tensor, dim: int, keepdim: bool, largest: bool) -> list[Tensor]:
    axes = normal_dims(x.ndim, dim)
    _check_not_empty(graph, x, axes)
    return reduce(graph, arg_extremum(x.dtype.cls, largest), x, axes, keepdim, [x.dtype, I64])


@lower("max.dim", out="dim_max", results=2, inplace=False)
def _max_dim(graph: Graph, x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
    return _with_index(graph, x, dim, keepdim, True)


@lower("min.dim", out="dim_min", results=2, inplace=False)
def _min_dim(graph: Graph, x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
    return _with_index(graph, x, dim, keepdim, False)


def _arg(graph: Graph, x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    axes = normal_dims(x.ndim, dim)
    _check_not_empty(graph, x, axes)
    full = arg_extremum(x.dtype.cls, largest)
    only_index = replace(full, finish=full.finish[1:])
    return reduce(graph, only_index, x, axes, keepdim, [I64])[0]


@lower("argmax", inplace=False)
def _argmax(graph: Graph, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(graph, x, dim, keepdim, True)


@lower("argmin", inplace=False)
def _argmin(graph: Graph, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(graph, x, dim, keepdim, False)


def _boolean(graph: Graph, x: Tensor, dims: Any, keepdim: bool, largest: bool) -> Tensor:
    dtype = x.dtype if x.dtype is wgsl.U8 else BOOL
    return reduce(graph, extremum("b", largest), x, normal_dims(x.ndim, dims), keepdim, [dtype])[0]


@lower("any", "any.dim", "any.dims", inplace=False)
def _any(graph: Graph, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return _boolean(graph, x, dims, keepdim, True)


@lower("all", "all.dim", "all.dims", inplace=False)
def _all(graph: Graph, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return _boolean(graph, x, dims, keepdim, False)


def _variance(
    graph: Graph, x: Tensor, dims: Any, correction: Any, keepdim: bool, deviation: bool, with_mean: bool
) -> list[Tensor]:
    if not x.dtype.is_float:
        raise RuntimeError(f"{graph.op} only support floating point dtypes, got {x.dtype.name}")
    p = 1.0 if correction is None else correction
    dtypes = [x.dtype] * (2 if with_mean else 1)
    return reduce(graph, moments(deviation), x, normal_dims(x.ndim, dims), keepdim, dtypes, p=p)


@lower("var.correction", inplace=False)
def _var(graph: Graph, x: Tensor, dims: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return _variance(graph, x, dims, correction, keepdim, False, False)[0]


@lower("std.correction", inplace=False)
def _std(graph: Graph, x: Tensor, dims: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return _variance(graph, x, dims, correction, keepdim, True, False)[0]


@lower("var_mean.correction", results=2, inplace=False)
def _var_mean(graph: Graph, x: Tensor, dims: Any = None, correction: Any = None, keepdim: bool = False) -> list[Tensor]:
    return _variance(graph, x, dims, correction, keepdim, False, True)


@lower("std_mean.correction", results=2, inplace=False)
def _std_mean(graph: Graph, x: Tensor, dims: Any = None, correction: Any = None, keepdim: bool = False) -> list[Tensor]:
    return _variance(graph, x, dims, correction, keepdim, True, True)


@lower("linalg_vector_norm", inplace=False)
def _vector_norm(
    graph: Graph, x: Tensor, ord: Any = 2, dims: Any = None, keepdim: bool = False, dtype: int | None = None
) -> Tensor:
    order = float(ord.value if isinstance(ord, Scalar) else ord)
    d = wgsl.DTYPES[dtype] if dtype is not None else x.dtype
    forms = {
        2.0: ("(a + v * v)", "(a + b)", "root_(a)"),
        1.0: ("(a + abs(v))", "(a + b)", "a"),
        0.0: ("(a + select(0.0, 1.0, truth(v)))", "(a + b)", "a"),
        float("inf"): ("fmaximum(a, abs(v))", "fmaximum(a, b)", "a"),
        float("-inf"): ("fminimum(a, abs(v))", "fminimum(a, b)", "a"),
    }
    if not d.is_float:
        raise RuntimeError(f"linalg.vector_norm: Expected a floating point tensor as input. Got {d.name}")
    axes = normal_dims(x.ndim, dims)
    if order < 0 or order == float("inf"):
        _check_not_empty(graph, x, axes)
    any_order = (f"(a + pow_f(abs(v), f32({order!r})))", "(a + b)", f"pow_f(a, f32({1 / order if order else 0.0!r}))")
    put, merge, finish = forms.get(order, any_order)
    first = "inf_()" if order == float("-inf") else "0.0"
    reducer = Reducer(f"norm{order}", "f", "f32", first, put, merge, ((finish, "f"),))
    return reduce(graph, reducer, x, axes, keepdim, [d])[0]
