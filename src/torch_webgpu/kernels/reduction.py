"""Reductions over any dimensions: one generator for sums, extrema, arg-extrema, moments and norms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import wgsl
from ..recipe import MAX_GROUPS, Graph, Tensor, Words, grid, product
from ..runtime import target
from ..wgsl import BOOL, F32, I64, DType
from .pointwise import LINEAR, MAIN, WORKGROUP, collapse, copy_into, emit, index_code, index_words

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


def total(cls: str, finish: str = "a") -> Reducer:
    """Sum; ``finish`` is what becomes of it, an expression of ``a``."""
    return _simple("sum", cls, wgsl.ZERO[cls], "add64(a, {b})" if cls == "l" else "(a + {b})", finish)


def prod(cls: str) -> Reducer:
    """Product."""
    one = {"f": "1.0", "l": "vec2<u32>(1u, 0u)"}[cls]
    return _simple("prod", cls, one, "mul64(a, {b})" if cls == "l" else "(a * {b})")


def extremum(cls: str, largest: bool) -> Reducer:
    """Maximum or minimum; NaN beats everything."""
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
            "(a | {b})" if largest else "(a & {b})",
        )
    return _simple(
        "amax" if largest else "amin",
        cls,
        (_LOWEST if largest else _HIGHEST)[cls],
        f"{functions[0 if largest else 1]}(a, {{b}})",
    )


def arg_extremum(cls: str, largest: bool) -> Reducer:
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


def moments(deviation: bool) -> Reducer:
    """Variance or standard deviation, and the mean, in one pass; ``{p}`` is the correction."""
    variance = "select(quotient_(a.m2, max(a.n - {p}, 0.0)), nan_(), a.n - {p} < 0.0 || (a.n - {p} == 0.0 && a.m2 == 0.0))"
    value = f"root_({variance})" if deviation else variance
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
    limit = target().limits["maxStorageBufferBindingSize"]
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
        # Words, since `all` of ones was False on an NVIDIA GPU (Vulkan) while bools lay in workgroup memory.
        state = reducer.state
        kept, pack, unpack = ("u32", "u32", "bool") if state == "bool" else (state, "", "")
        return head + (
            f"fn merge_(a: {state}, b: {state}) -> {state} {{ return {reducer.merge}; }}\n"
            f"var<workgroup> shared_: array<{kept}, {WORKGROUP}>;\n"
            + MAIN.format(wg=WORKGROUP)
            + f"let o = g.y * n.x + g.x;\nif (o >= {w.rows}) {{ return; }}\n"
            + index_code(w, outer_rank, ["x"], row, "o")
            + f"\nvar a: {state} = {reducer.first};\n"
            + f"for (var r = {start}; r < {w.count}; r += {step}) {{\n{loop}}}\n"
            + f"shared_[l] = {pack}(a);\nworkgroupBarrier();\n"
            + f"for (var s = {WORKGROUP // 2}u; s > 0u; s = s / 2u) {{\n"
            + f"if (l < s) {{ shared_[l] = {pack}(merge_({unpack}(shared_[l]), {unpack}(shared_[l + s]))); }}\n"
            + f"workgroupBarrier();\n}}\nif (l == 0u) {{\na = {unpack}(shared_[0]);\n"
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
