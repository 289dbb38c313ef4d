"""Tiled matrix product with float32 sums: ``out = program(alpha * a @ b + beta * c, *extras)``.

Tile shapes for many to few rows. Where tiles are few, the sum over k is split among workgroups and added up by a
second launch, so that a large GPU is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import wgsl
from ..recipe import MAX_GROUPS, Graph, Tensor, Words, grid
from ..runtime import target
from ..wgsl import BF16, F16, F32, DType
from . import render
from .program import IDENTITY, Program

DEPTH = 16  # terms of the sum a tile
REDUCE_WORKGROUP = 128
MANY_LARGE = 512  # large tiles from which they fill a large GPU evenly
FEW_RESULTS = 96 * 96  # results up to which small tiles are better: more workgroups, and a shader that compiles sooner
SLOW_ON_CPU = 1 << 26  # multiplications from which a CPU gains more by large tiles than their shader takes to compile
ENOUGH = 1024  # small workgroups that do so
SHORTEST_SPLIT = 64  # terms of the sum that a workgroup should have


@dataclass(frozen=True)
class _Tile:
    """``tx`` × ``ty`` invocations with ``rm`` rows and ``rn`` columns of results each."""

    tx: int
    ty: int
    rm: int
    rn: int

    @property
    def rows(self) -> int:
        return self.ty * self.rm

    @property
    def columns(self) -> int:
        return self.tx * self.rn


_LARGE, _SQUARE, _SMALL = _Tile(16, 16, 8, 8), _Tile(8, 8, 8, 8), _Tile(8, 8, 4, 4)
_LOW, _LOWEST = _Tile(16, 4, 8, 8), _Tile(16, 4, 4, 8)


@dataclass(frozen=True)
class _Product:
    """Operands of one product, all of rank 3."""

    a: Tensor
    b: Tensor
    out: Tensor
    c: Tensor | None
    alpha: Any
    beta: Any
    program: Program
    extras: tuple[Tensor, ...]

    def narrow(self, dim: int, start: int, length: int) -> _Product:
        """A slice of the result along z, m or n."""
        return replace(
            self,
            a=self.a.narrow(dim, start, length) if dim != 2 else self.a,
            b=self.b.narrow(dim, start, length) if dim != 1 else self.b,
            out=self.out.narrow(dim, start, length),
            c=None if self.c is None else self.c.narrow(dim, start, length),
            extras=tuple(t.narrow(dim, start, length) for t in self.extras),
        )


def gemm(
    graph: Graph,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    *,
    program: Program = IDENTITY,
    extras: Sequence[Tensor] = (),
    c: Tensor | None = None,
    alpha: Any = 1,
    beta: Any = 0,
) -> None:
    """``out[z, m, n] = program(alpha * sum_k a[z, m, k] b[z, k, n] + beta * c[z, m, n], *extras)``.

    Args:
        a: (Z, M, K) or (M, K), float32, float16 or bfloat16 of any strides (0 for batches that are broadcast).
        b: (Z, K, N) or (K, N), likewise. Vectors are read where one of k and n (k and m for ``a``) is contiguous, its
            size a multiple of 4 elements (8 of 16 bits) and rows begin at multiples of 16 bytes.
        out: (Z, M, N) or (M, N), any dtype; shares no element with ``a`` and ``b``.
        program: arithmetic on each result; its inputs are the product (class ``f``) and one a tensor of ``extras``.
        extras: tensors broadcast to ``out``; they may be ``out`` itself.
        c: addend, broadcast to ``out``.

    Raises:
        RuntimeError: for shapes that do not fit, and for one row beyond the largest binding.
    """
    a, b, out = (t if t.ndim == 3 else t.view((1, *t.sizes), (0, *t.strides)) for t in (a, b, out))
    z, m, n = out.sizes
    if a.sizes != (z, m, a.sizes[2]) or b.sizes != (z, a.sizes[2], n):
        raise RuntimeError(f"gemm: {a} @ {b} does not give {out}")
    if not (a.dtype.is_float and b.dtype.is_float):
        raise RuntimeError(f"gemm: expected floating-point matrices, got {a} and {b}")
    if len(program.inputs) != len(extras) + 1:
        raise RuntimeError(f"gemm: the program takes {len(program.inputs)} inputs, got the product and {len(extras)}")
    if out.numel == 0:
        return
    c = None if c is None else c.expand(out.sizes)
    _cut(graph, _Product(a, b, out, c, alpha, beta, program, tuple(t.expand(out.sizes) for t in extras)))


def _cut(graph: Graph, p: _Product) -> None:
    """Splits along the batch, n or m where operands exceed a binding, then launches."""
    limit = target().limits["maxStorageBufferBindingSize"]

    def fits(*tensors: Tensor | None) -> bool:
        return all(t is None or t.extent * t.dtype.itemsize + 256 <= limit for t in tensors)

    z, m, n = p.out.sizes
    if z <= MAX_GROUPS and fits(p.a, p.b, p.out, p.c, *p.extras):
        return _launch(graph, p, limit)
    dim = 0 if z > 1 else 2 if (not fits(p.b) or n > 1) and (n >= m or fits(p.a)) else 1
    size = p.out.sizes[dim]
    if size == 1:
        raise RuntimeError(
            f"{graph.op}: one row of {p.a} @ {p.b} exceeds the largest binding of {limit} bytes; split the matrix"
        )
    _cut(graph, p.narrow(dim, 0, size // 2))
    _cut(graph, p.narrow(dim, size // 2, size - size // 2))


# ---------------------------------------------------------------------------------------------------- choices


def _how(t: Tensor, rows: int, stride_r: int, stride_k: int, vectors: bool) -> str:
    """How tiles of an operand are read: vectors along ``k`` or the rows (``kv``, ``rv``), or single elements.

    Args:
        rows: how many there are (m of ``a``, n of ``b``).
        vectors: whether vectors may be read.
    """
    depth = t.numel // max(rows * t.sizes[0], 1)
    vector = 16 // t.dtype.itemsize
    batches = t.sizes[0] == 1 or t.strides[0] % vector == 0
    if vectors and t.aligned(16) and batches:
        if stride_k == 1 and depth % vector == 0 and (rows == 1 or stride_r % vector == 0):
            return "kv"
        if stride_r == 1 and rows % vector == 0 and (depth == 1 or stride_k % vector == 0):
            return "rv"
    return "rs" if stride_r == 1 and stride_k != 1 else "ks"


def _choose(z: int, m: int, n: int, k: int, limit: int) -> tuple[_Tile, int, int]:
    """(tile, parts of the sum, terms a part)."""

    def tiles(t: _Tile) -> int:
        return -(-m // t.rows) * -(-n // t.columns) * z

    cpu = target().adapter.kind == "cpu"
    if m * n <= FEW_RESULTS or (cpu and z * m * n * k < SLOW_ON_CPU):
        tile = _SMALL
    elif m <= _LOWEST.rows:
        tile = _LOWEST
    elif m <= _LOW.rows:
        tile = _LOW
    else:
        tile = _LARGE if tiles(_LARGE) >= MANY_LARGE else _SQUARE
    splits = 1
    if tile is not _LARGE and not cpu:
        room = min((limit - 256) // (4 * z * m * n), MAX_GROUPS // z)
        splits = max(1, min(ENOUGH // tiles(tile), k // SHORTEST_SPLIT, room))
    chunk = -(-k // (splits * DEPTH)) * DEPTH
    return tile, -(-k // chunk) if k else 1, chunk


def _pack(out: Tensor) -> int:
    """Neighbouring results stored as one word: 2 for 16-bit floats in rows of whole words, else 1."""
    whole = (
        out.dtype.is_float
        and out.dtype.packed
        and out.strides[2] == 1
        and out.sizes[2] % 2 == 0
        and out.aligned(4)
        and all(s % 2 == 0 for n, s in zip(out.sizes[:2], out.strides[:2], strict=True) if n > 1)
    )
    return 2 if whole else 1


_UNPACK = {
    F16: "unpack2x16float({0})",
    BF16: "vec2<f32>(bitcast<f32>({0} << 16u), bitcast<f32>({0} & 0xffff0000u))",
    F32: "",
}


# ---------------------------------------------------------------------------------------------------- launches


def _launch(graph: Graph, p: _Product, limit: int) -> None:
    z, m, n = p.out.sizes
    k = p.a.sizes[2]
    tile, splits, chunk = _choose(z, m, n, k, limit)
    rolled = target().adapter.kind == "cpu"  # unrolled by the driver, the inner loop takes long to compile
    vectors = tile is not _SMALL or not rolled  # else fewer shaders
    how_a = _how(p.a, m, p.a.strides[1], p.a.strides[2], vectors)
    how_b = _how(p.b, n, p.b.strides[2], p.b.strides[1], vectors)
    parts = graph.new((splits * z * m * n,), F32) if splits > 1 else None
    tiles_m, tiles_n = -(-m // tile.rows), -(-n // tile.columns)

    def words(w: Words) -> None:
        _shape_words(w, p, splits)
        w.u32("K", k)
        w.u32("chunk", chunk)
        w.u32("quads", DEPTH // 4)
        w.u32("tiles_m", tiles_m)
        w.u32("tiles", tiles_m * tiles_n)
        for name, t, dims in (("a", p.a, "zmk"), ("b", p.b, "zkn")):
            for d, s in zip(dims, t.strides, strict=True):
                w.u32(name + d, s)
        if parts is None:
            _finish_words(w, p)

    def source(w: Words) -> str:
        return render(
            "gemm",
            w=w,
            tx=tile.tx,
            ty=tile.ty,
            rm=tile.rm,
            rn=tile.rn,
            tm=tile.rows,
            tn=tile.columns,
            load_a=how_a,
            load_b=how_b,
            each_a=p.a.dtype.per_word,
            each_b=p.b.dtype.per_word,
            unpack_a=_UNPACK[p.a.dtype],
            unpack_b=_UNPACK[p.b.dtype],
            quads=w.quads if rolled else "4u",
            split=parts is not None,
            pack=_pack(p.out),
            finish="" if parts is not None else _finish(w, p),
        )

    args = [("a", p.a, "v" if how_a.endswith("v") else "r"), ("b", p.b, "v" if how_b.endswith("v") else "r")]
    args += _finish_args(p) if parts is None else [("s", parts, "w")]
    static = (tile, how_a, how_b, parts is not None, rolled) + (_finish_key(p) if parts is None else ())
    x, y, _ = grid(tiles_m * tiles_n, 1)
    graph.launch("gemm", args, words, source, (x, y, z * splits), static)
    if parts is not None:
        _reduce(graph, p, parts, splits)


def _reduce(graph: Graph, p: _Product, parts: Tensor, splits: int) -> None:
    pack = _pack(p.out)

    def words(w: Words) -> None:
        _shape_words(w, p, splits)
        _finish_words(w, p)

    def source(w: Words) -> str:
        return render("gemm_reduce", w=w, workgroup=REDUCE_WORKGROUP, pack=pack, finish=_finish(w, p))

    args = [("s", parts, "r"), *_finish_args(p)]
    graph.launch("gemm_reduce", args, words, source, grid(p.out.numel // pack, REDUCE_WORKGROUP), _finish_key(p))


def _shape_words(w: Words, p: _Product, splits: int) -> None:
    for name, value in zip("ZMN", p.out.sizes, strict=True):
        w.u32(name, value)
    w.u32("splits", splits)


def _finish_words(w: Words, p: _Product) -> None:
    tensors = [("o", p.out), *((f"x{i}", t) for i, t in enumerate(p.extras))]
    for name, t in [*tensors, ("c", p.c)] if p.c is not None else tensors:
        for d, s in zip("zmn", t.strides, strict=True):
            w.u32(f"{name}_{d}", s)
    w.number("alpha", p.alpha, "f")
    w.number("beta", p.beta, "f")


def _finish_args(p: _Product) -> list[tuple[str, Tensor, str]]:
    args = [("o", p.out, "p" if _pack(p.out) == 2 else "w")]
    args += [(f"x{i}", t, "r") for i, t in enumerate(p.extras)]
    return args if p.c is None else [*args, ("c", p.c, "r")]


def _finish_key(p: _Product) -> tuple[Any, ...]:
    return (p.program, p.c is not None, _pack(p.out))


def _finish(w: Words, p: _Product) -> str:
    """WGSL functions that make a result of a sum and store one (``put``) or two neighbours (``put2``)."""

    def at(name: str) -> str:
        return f"z * {w.expr(f'{name}_z')} + m * {w.expr(f'{name}_m')} + n * {w.expr(f'{name}_n')}"

    d: DType = p.out.dtype
    value = f"sum * {w.expr('alpha', 'f')}"
    if p.c is not None:
        addend = wgsl.cast(f"ld_c({at('c')})", p.c.dtype.cls, "f")
        value += f" + {w.expr('beta', 'f')} * {addend}"
    inputs = ["value"]
    for i, (t, cls) in enumerate(zip(p.extras, p.program.inputs[1:], strict=True)):
        inputs.append(wgsl.cast(f"ld_x{i}({at(f'x{i}')})", t.dtype.cls, cls))
    lines, result = p.program.emit(inputs)
    result = wgsl.cast(result, p.program.cls, d.cls)
    code = (
        f"fn finished(z: u32, m: u32, n: u32, sum: f32) -> {wgsl.TYPE[d.cls]} {{\n"
        f"let value = {value};\n{lines}return {result};\n}}\n"
    )
    if _pack(p.out) == 1:
        return code + (f"fn put(z: u32, m: u32, n: u32, sum: f32) {{ st_o({at('o')}, finished(z, m, n, sum)); }}\n")
    low, high = (wgsl.bits_of(d, f"finished(z, m, n{step}, {s})") for step, s in (("", "s0"), (" + 1u", "s1")))
    return code + (
        f"fn put2(z: u32, m: u32, n: u32, s0: f32, s1: f32) {{ st_o(({at('o')}) / 2u, {low} | ({high} << 16u)); }}\n"
    )
