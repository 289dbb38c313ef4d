"""Reductions over any dimensions: one generator for sums, extrema, arg-extrema, moments and norms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, collapse, copy_into, emit, index_code, index_words
from ..recipe import MAX_GROUPS, Graph, Scalar, Tensor, Words, grid, product
from ..registry import lower
from ..runtime import device
from ..wgsl import BOOL, F32, I64, DType

SMALL = 48  # reduced elements up to which one invocation does the whole row
SPLIT_FROM = 32768  # reduced elements from which few rows are cut into segments
SEGMENTS = 64

_LOWEST = {"f": "-inf_()", "i": "bitcast<i32>(0x80000000u)", "l": "vec2<u32>(0u, 0x80000000u)", "b": "false"}
_HIGHEST = {"f": "inf_()", "i": "bitcast<i32>(0x7fffffffu)", "l": "vec2<u32>(0xffffffffu, 0x7fffffffu)", "b": "true"}


@dataclass(frozen=True)
class Reducer:
    """How values are gathered.

    Attributes:
        cls: class the values are converted to.
        state: WGSL type of the accumulator; ``struct`` its declaration where it is one.
        first: the empty accumulator.
        put: accumulator ``a`` with value ``v`` at position ``r`` (u32) added.
        merge: accumulators ``a`` and ``b`` joined; ``b`` covers later or interleaved positions.
        finish: one (expression of ``a``, class) a result; ``{scale}`` and ``{p}`` are uniform words.
        fields: the accumulator's numbers as (expression of ``a``, class, ``u`` for positions), where it is a struct.
        joined: each field after ``merge``, as an expression of the fields of ``a`` and ``b``.
    """

    name: str
    cls: str
    state: str
    first: str
    put: str
    merge: str
    finish: tuple[tuple[str, str], ...]
    struct: str = ""
    helpers: str = field(default="", repr=False)
    fields: tuple[tuple[str, str], ...] = ()
    joined: tuple[str, ...] = ()


def _simple(name: str, cls: str, first: str, merge: str, finish: str = "a") -> Reducer:
    return Reducer(name, cls, wgsl.TYPE[cls], first, merge.replace("{b}", "v"), merge.replace("{b}", "b"), ((finish, cls),))


def _sum(cls: str, finish: str = "a") -> Reducer:
    return _simple("sum", cls, wgsl.ZERO[cls], "add64(a, {b})" if cls == "l" else "(a + {b})", finish)


def _prod(cls: str) -> Reducer:
    one = {"f": "1.0", "l": "vec2<u32>(1u, 0u)"}[cls]
    return _simple("prod", cls, one, "mul64(a, {b})" if cls == "l" else "(a * {b})")


def _extremum(cls: str, largest: bool) -> Reducer:
    functions = {
        "f": ("fmaximum", "fminimum"),
        "i": ("max", "min"),
        "l": ("max64", "min64"),
        "b": ("any_", "all_"),
    }[cls]
    if cls == "b":
        return _simple(
            "amax" if largest else "amin",
            "b",
            "false" if largest else "true",
            "(a || {b})" if largest else "(a && {b})",
        )
    return _simple(
        "amax" if largest else "amin",
        cls,
        (_LOWEST if largest else _HIGHEST)[cls],
        f"{functions[0 if largest else 1]}(a, {{b}})",
    )


def _arg_extremum(cls: str, largest: bool) -> Reducer:
    """First position of the extremum; NaN beats everything. The empty accumulator has position 2³²−1."""
    cls = "i" if cls == "b" else cls
    a, b = ("b.v", "a.v") if largest else ("a.v", "b.v")  # "b better than a" is: b > a, or b < a
    better = {"f": f"({b} < {a})", "i": f"({b} < {a})", "l": f"lt64({b}, {a})"}[cls]
    same = {"f": "(a.v == b.v)", "i": "(a.v == b.v)", "l": "eq64(a.v, b.v)"}[cls]
    if cls == "f":
        better = f"((isnan_(b.v) && !isnan_(a.v)) || (!isnan_(a.v) && {better}))"
        same = "((isnan_(a.v) && isnan_(b.v)) || a.v == b.v)"
    helper = (
        "fn pick_(a: A, b: A) -> A { if (b.i == 0xffffffffu) { return a; } if (a.i == 0xffffffffu) { return b; }\n"
        f"if ({better} || ({same} && b.i < a.i)) {{ return b; }} return a; }}"
    )
    return Reducer(
        "argmax" if largest else "argmin",
        cls,
        "A",
        f"A({wgsl.ZERO[cls]}, 0xffffffffu)",
        "pick_(a, A(v, r))",
        "pick_(a, b)",
        (("a.v", cls), ("vec2<u32>(a.i, 0u)", "l")),
        f"struct A {{ v: {wgsl.TYPE[cls]}, i: u32 }}",
        helper,
        (("a.v", cls), ("a.i", "u")),
        tuple(f"select(a.{m}, b.{m}, {better} || ({same} && b.i < a.i))" for m in "vi"),
    )


# Welford's update and Chan's merge (Chan, Golub, LeVeque 1979).
_MOMENTS = (
    "struct A { mean: f32, m2: f32, n: f32 }",
    "fn put_(a: A, v: f32) -> A { let n = a.n + 1.0; let d = v - a.mean; let m = a.mean + d / n; "
    "return A(m, a.m2 + d * (v - m), n); }\n"
    "fn join_(a: A, b: A) -> A { if (b.n == 0.0) { return a; } if (a.n == 0.0) { return b; } let n = a.n + b.n; "
    "let d = b.mean - a.mean; return A(a.mean + d * (b.n / n), a.m2 + b.m2 + d * d * (a.n * b.n / n), n); }",
)


def _moments(deviation: bool) -> Reducer:
    variance = "select(a.m2 / max(a.n - {p}, 0.0), nan_(), a.n - {p} < 0.0 || (a.n - {p} == 0.0 && a.m2 == 0.0))"
    value = f"sqrt({variance})" if deviation else variance
    return Reducer(
        "moments",
        "f",
        "A",
        "A(0.0, 0.0, 0.0)",
        "put_(a, v)",
        "join_(a, b)",
        ((value, "f"), ("select(a.mean, nan_(), a.n == 0.0)", "f")),
        *_MOMENTS,
        (("a.mean", "f"), ("a.m2", "f"), ("a.n", "f")),
        (
            "(a.mean + (b.mean - a.mean) * (b.n / (a.n + b.n)))",
            "(a.m2 + b.m2 + (b.mean - a.mean) * (b.mean - a.mean) * (a.n * b.n / (a.n + b.n)))",
            "(a.n + b.n)",
        ),
    )


# ---------------------------------------------------------------------------------------------------- kernels


_STATE_DTYPE = {"f": F32, "l": I64, "b": BOOL, "i": wgsl.I32}


def normal_dims(ndim: int, dims: Sequence[int] | int | None) -> tuple[int, ...]:
    """Sorted non-negative dimensions; None or empty means all. Raises IndexError out of range."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(ndim))
    out = []
    for d in (dims,) if isinstance(dims, int) else dims:
        bound = max(ndim, 1)
        if not -bound <= d < bound:
            raise IndexError(f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {d})")
        d %= bound
        if d in out:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
        if ndim:
            out.append(d)
    return tuple(sorted(out))


def reduced_shape(x: Tensor, dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """Shape of the result."""
    return tuple(1 if i in dims else n for i, n in enumerate(x.sizes) if keepdim or i not in dims)


def reduce(
    graph: Graph,
    reducer: Reducer,
    x: Tensor,
    dims: tuple[int, ...],
    keepdim: bool,
    dtypes: Sequence[DType],
    scale: int = 1,
    p: Any = 0.0,
) -> list[Tensor]:
    """Reduces ``dims`` of ``x``; one result for each of ``dtypes`` (at most as many as ``reducer.finish`` has)."""
    shape = reduced_shape(x, dims, keepdim)
    outs = [graph.new(shape, d) for d in dtypes]
    kept = reduced_shape(x, dims, True)
    _reduce_into(graph, reducer, x, dims, [o.reshape(kept) for o in outs], scale, p)
    return outs


def _reduce_into(
    graph: Graph, reducer: Reducer, x: Tensor, dims: tuple[int, ...], outs: Sequence[Tensor], scale: int, p: Any
) -> None:
    """Reduces into tensors of the kept shape; what exceeds the largest binding is cut in halves."""
    limit = device().limits["maxStorageBufferBindingSize"]
    if max([t.extent * t.dtype.itemsize for t in (x, *outs)]) + 256 > limit:
        if all(t.extent * t.dtype.itemsize + 256 <= limit for t in outs):
            cut = max(range(x.ndim), key=lambda d: (x.sizes[d] - 1) * x.strides[d])
        else:
            cut = max(set(range(x.ndim)) - set(dims), key=lambda d: x.sizes[d])
        half = x.sizes[cut] // 2
        parts = [(0, half), (half, x.sizes[cut] - half)]
        if cut not in dims:
            for start, length in parts:
                pieces = [o.narrow(cut, start, length) for o in outs]
                direct = [t if t.contiguous else graph.new(t.sizes, t.dtype) for t in pieces]
                _reduce_into(graph, reducer, x.narrow(cut, start, length), dims, direct, scale, p)
                for made, wanted in zip(direct, pieces, strict=True):
                    if made is not wanted:
                        copy_into(graph, made, wanted)
            return
        return _reduce_halves(graph, reducer, x, cut, parts, dims, outs, scale, p)
    outer = [i for i in range(x.ndim) if i not in dims]
    count, rows = product([x.sizes[i] for i in dims]), product([x.sizes[i] for i in outer])
    if rows == 0:
        return
    out_sizes, (out_strides,) = collapse([x.sizes[i] for i in outer], [[x.strides[i] for i in outer]])
    in_sizes, (in_strides,) = collapse([x.sizes[i] for i in dims], [[x.strides[i] for i in dims]])
    index: Tensor | None = None
    if count >= SPLIT_FROM and rows <= 256 and reducer.name != "moments":
        x, index, out_sizes, out_strides, in_sizes, in_strides, count, reducer = _segments(
            graph, reducer, x, (out_sizes, out_strides), (in_sizes, in_strides), rows, count
        )
    _launch(graph, reducer, x, outs, (out_sizes, out_strides), (in_sizes, in_strides), rows, count, scale, p, 1, index)


def _reduce_halves(
    graph: Graph,
    reducer: Reducer,
    x: Tensor,
    cut: int,
    pieces: Sequence[tuple[int, int]],
    dims: tuple[int, ...],
    outs: Sequence[Tensor],
    scale: int,
    p: Any,
) -> None:
    """Reduces two parts of the reduced dimension ``cut`` one after the other and merges them elementwise."""
    fields = reducer.fields or (("a", reducer.cls),)
    stored = tuple((f"vec2<u32>({name}, 0u)", "l") if cls == "u" else (name, cls) for name, cls in fields)
    values: dict[str, str] = {}  # operands of the merging expression, by field of a and b
    states: list[Tensor] = []
    for side, (start, length) in zip("ab", pieces, strict=True):
        state = [graph.new(outs[0].sizes, _STATE_DTYPE[cls]) for _, cls in stored]
        _reduce_into(graph, replace(reducer, finish=stored), x.narrow(cut, start, length), dims, state, 1, p)
        for (name, cls), t in zip(fields, state, strict=True):
            if cls == "u":
                _shift_positions(graph, t, x, cut, dims, start, length)
            values[side + name[1:]] = f"{{{len(states)}}}" + (".x" if cls == "u" else "")
            states.append(t)
    merged = dict(zip([name for name, _ in fields], reducer.joined or (reducer.merge,), strict=True))
    classes = [cls for _, cls in stored] * 2
    values |= {"SCALE_": f"{{{len(classes)}}}", "P_": f"{{{len(classes) + 1}}}"}
    for out, (finish, cls) in zip(outs, reducer.finish, strict=False):
        joined = _substituted(finish.format(scale="SCALE_", p="P_"), merged)
        emit(graph, _substituted(joined, values), [*states, scale, p], [*classes, "f", "f"], cls, out, "merge_halves")


def _substituted(text: str, names: Mapping[str, str]) -> str:
    """The expression with names (``a``, or fields like ``a.v``) replaced, all at once."""
    pattern = "|".join(rf"\b{re.escape(name)}\b" for name in names)
    return re.sub(pattern, lambda match: names[match[0]], text)


def _shift_positions(
    graph: Graph, index: Tensor, x: Tensor, cut: int, dims: tuple[int, ...], start: int, length: int
) -> None:
    """Turns positions within a slice of ``x`` along ``cut`` into positions within all of it."""
    inner = product([x.sizes[d] for d in dims if d > cut])
    numbers = [length * inner, x.sizes[cut] * inner, start * inner]
    form = "vec2<u32>({0}.x / {1}.x * {2}.x + {0}.x % {1}.x + {3}.x, 0u)"
    emit(graph, form, [index, *numbers], ["l"] * 4, "l", index, "shift_positions")


def _segments(graph: Graph, reducer: Reducer, x: Tensor, outer: Any, inner: Any, rows: int, count: int) -> Any:
    """First stage of two: partial results of ``SEGMENTS`` interleaved segments a row (positions too, for arg-extrema)."""
    positions = bool(reducer.struct)
    partial = [graph.new((rows, SEGMENTS), _STATE_DTYPE[reducer.cls])]
    finish: tuple[tuple[str, str], ...] = (("a", reducer.cls),)
    if positions:
        partial.append(graph.new((rows, SEGMENTS), I64))
        finish = (("a.v", reducer.cls), ("vec2<u32>(a.i, 0u)", "l"))
    _launch(graph, replace(reducer, finish=finish), x, partial, outer, inner, rows, count, 1, 0.0, SEGMENTS)
    put = reducer.put.replace("r)", "q)") if positions else re.sub(r"\bb\b", "v", reducer.merge)
    merged = replace(reducer, put=put)
    sizes, (strides,) = collapse([rows], [[SEGMENTS]])
    return partial[0], partial[1] if positions else None, sizes, strides, [SEGMENTS], [1], SEGMENTS, merged


def _launch(
    graph: Graph,
    reducer: Reducer,
    x: Tensor,
    outs: Sequence[Tensor],
    outer: tuple[list[int], list[int]],
    inner: tuple[list[int], list[int]],
    rows: int,
    count: int,
    scale: int,
    p: Any,
    segments: int = 1,
    index: Tensor | None = None,
) -> None:
    """One dispatch. ``index`` holds the positions of the elements of ``x`` where those are partial results (``q``)."""
    by_row = count > SMALL and rows <= MAX_GROUPS * 256
    if segments > 1:
        by_row = True
    inner_rank, outer_rank = len(inner[0]), len(outer[0])

    def words(w: Words) -> None:
        w.u32("rows", rows * segments)
        w.u32("count", count)
        w.u32("scale", scale)
        w.number("p", p, "f")
        index_words(w, outer[0], {"x": outer[1]}, "o")
        index_words(w, inner[0], {"x": inner[1]}, "i")

    def source(w: Words) -> str:
        finish = [
            f"st_o{k}(o, {wgsl.cast(expr.format(scale=f'f32({w.scale})', p=w.expr('p', 'f')), cls, out.dtype.cls)});"
            for k, (out, (expr, cls)) in enumerate(zip(outs, reducer.finish, strict=False))
        ]
        value = wgsl.cast("ld_x(x_ox + x_ix)", x.dtype.cls, reducer.cls)
        position = "let q = ld_q(x_ox + x_ix).x;\n" if index is not None else ""
        loop = (
            f"{index_code(w, inner_rank, ['x'], 'r', 'i')}\n{position}let v = {value};\na = {reducer.put};\n"
            if count
            else ""
        )
        row = "o" if segments == 1 else f"(o / {segments}u)"
        head = f"{reducer.struct}\n{reducer.helpers}\n"
        if not by_row:
            return head + (
                MAIN.format(wg=WORKGROUP)
                + f"let o = {LINEAR.format(wg=WORKGROUP)};\nif (o >= {w.rows}) {{ return; }}\n"
                + index_code(w, outer_rank, ["x"], row, "o")
                + f"\nvar a: {reducer.state} = {reducer.first};\nfor (var r = 0u; r < {w.count}; r++) {{\n{loop}}}\n"
                + "\n".join(finish)
                + "\n}"
            )
        start, step = (
            ("l", f"{WORKGROUP}u")
            if segments == 1
            else (f"(o % {segments}u) * {WORKGROUP}u + l", f"{segments * WORKGROUP}u")
        )
        return head + (
            f"fn merge_(a: {reducer.state}, b: {reducer.state}) -> {reducer.state} {{ return {reducer.merge}; }}\n"
            f"var<workgroup> shared_: array<{reducer.state}, {WORKGROUP}>;\n"
            + MAIN.format(wg=WORKGROUP)
            + f"let o = g.y * n.x + g.x;\nif (o >= {w.rows}) {{ return; }}\n"
            + index_code(w, outer_rank, ["x"], row, "o")
            + f"\nvar a: {reducer.state} = {reducer.first};\n"
            + f"for (var r = {start}; r < {w.count}; r += {step}) {{\n{loop}}}\n"
            + "shared_[l] = a;\nworkgroupBarrier();\n"
            + f"for (var s = {WORKGROUP // 2}u; s > 0u; s = s / 2u) {{\n"
            + "if (l < s) { shared_[l] = merge_(shared_[l], shared_[l + s]); }\n"
            + "workgroupBarrier();\n}\nif (l == 0u) {\na = shared_[0];\n"
            + "\n".join(finish)
            + "\n}\n}"
        )

    args = [("x", x, "r")] if count else []  # an empty tensor has no buffer to bind
    args += [("q", index, "r")] if index is not None else []
    args += [(f"o{k}", out, "w") for k, out in enumerate(outs)]
    static = (
        reducer.name,
        reducer.cls,
        reducer.finish,
        reducer.put,
        outer_rank,
        inner_rank,
        by_row,
        segments,
        count == 0,
    )
    graph.launch("reduce", args, words, source, grid(rows * segments, 1 if by_row else WORKGROUP), static)


# ---------------------------------------------------------------------------------------------------- ops


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
    return _accumulate(graph, _sum, x, dims, keepdim, _sum_dtype(x, dtype))


@lower("prod", "prod.dim_int", inplace=False)
def _prod_op(graph: Graph, x: Tensor, dims: Any = None, keepdim: bool = False, dtype: int | None = None) -> Tensor:
    if graph.op in ("prod", "prod.out"):
        dims, keepdim, dtype = None, False, dims
    return _accumulate(graph, _prod, x, dims, keepdim, _sum_dtype(x, dtype))


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
    return reduce(graph, _sum("f", "(a / {scale})"), x, axes, keepdim, [d], scale=count)[0]


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
    return reduce(graph, _extremum(x.dtype.cls, True), x, axes, keepdim, [x.dtype])[0]


@lower("amin", inplace=False)
def _amin(graph: Graph, x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    axes = normal_dims(x.ndim, dims)
    if not dims and x.numel == 0:
        raise RuntimeError(f"{graph.op}(): Expected reduction dim to be specified for input.numel() == 0. Specify a dim")
    _check_not_empty(graph, x, axes)
    return reduce(graph, _extremum(x.dtype.cls, False), x, axes, keepdim, [x.dtype])[0]


@lower("max", out="unary_out", inplace=False)
def _max(graph: Graph, x: Tensor) -> Tensor:
    return _amax(graph, x)


@lower("min", out="unary_out", inplace=False)
def _min(graph: Graph, x: Tensor) -> Tensor:
    return _amin(graph, x)


def _with_index(graph: Graph, x: Tensor, dim: int, keepdim: bool, largest: bool) -> list[Tensor]:
    axes = normal_dims(x.ndim, dim)
    _check_not_empty(graph, x, axes)
    return reduce(graph, _arg_extremum(x.dtype.cls, largest), x, axes, keepdim, [x.dtype, I64])


@lower("max.dim", out="dim_max", results=2, inplace=False)
def _max_dim(graph: Graph, x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
    return _with_index(graph, x, dim, keepdim, True)


@lower("min.dim", out="dim_min", results=2, inplace=False)
def _min_dim(graph: Graph, x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
    return _with_index(graph, x, dim, keepdim, False)


def _arg(graph: Graph, x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    axes = normal_dims(x.ndim, dim)
    _check_not_empty(graph, x, axes)
    full = _arg_extremum(x.dtype.cls, largest)
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
    return reduce(graph, _extremum("b", largest), x, normal_dims(x.ndim, dims), keepdim, [dtype])[0]


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
    return reduce(graph, _moments(deviation), x, normal_dims(x.ndim, dims), keepdim, dtypes, p=p)


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
        2.0: ("(a + v * v)", "(a + b)", "sqrt(a)"),
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
