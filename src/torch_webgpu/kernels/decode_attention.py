"""Attention of one query row a head over a key/value cache: rotary embedding, cache update and softmax in one go.

The keys are walked in tiles. A workgroup serves several query heads that share a key/value head, so that a cache row is
read once for all of them. A long cache is shared out among workgroups (tile t belongs to workgroup t modulo their number,
so that a cache that is filled little keeps them all busy) whose unnormalised results a second launch combines. The usual
case, a cache of moderate length without a mask, takes the one launch of ``decode_row`` instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .. import wgsl
from ..errors import LimitError
from ..recipe import MAX_GROUPS, Graph, Tensor, Words
from ..runtime import target
from ..wgsl import BF16, F16, F32
from . import render
from .decode_operands import Call, Rope, fill_words, store, whole_rows
from .decode_row import launch_row, takes_row
from .pointwise import copy_into

__all__ = ["Rope", "decode_attention"]

WORKGROUP = 256
MOST_HEADS = 8  # query heads a workgroup
MOST_DIM = 256
SHORT = 128  # slots up to which one launch does it all
SPREAD = 256  # workgroups that a long cache is shared out among, at most
SHARED_BYTES = 16384
READ_AHEAD = 8  # results of other workgroups that an invocation reads at once


def decode_attention(
    graph: Graph,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    *,
    position: Tensor | None,
    mask: Tensor | None,
    scale: Any,
    rope: Rope | None = None,
) -> None:
    """``out = softmax(scale * rope(q) cache_k^T + mask) cache_v`` after ``cache[position] = rope(k), v``.

    Args:
        q: query (B, H, 1, D), D ≤ 256, float of any strides.
        k, v: the new entries (B, Hkv, 1, D), H a multiple of Hkv; or both None: the caches are only read.
        k_cache, v_cache: (B, Hkv, L, D), float; row ``position`` is written.
        out: (B, H, 1, D), float; must not share elements with the other operands.
        position: int64 or int32 tensor of one element, the slot written; may be None where ``k`` is. Outside of
            [0, L) the device reports an IndexError and nothing is written to the caches.
        mask: None to attend to slots ≤ ``position`` (to all without one), else bool or float, broadcast to (B, H, 1, L).
            Slots that are off never touch the result, whatever they hold. A row without slots gives 0.
        rope: applied to ``q`` and ``k`` in float32; needs an even D.

    Raises:
        RuntimeError: for shapes or dtypes that do not fit.
        LimitError: for a cache of one key/value head beyond the largest binding.
    """
    _check(q, k, v, k_cache, v_cache, out, position, rope)
    if out.numel == 0:
        return
    b, h, _, d = q.sizes
    slots = k_cache.sizes[2]
    if mask is not None:
        mask = mask.expand((b, h, 1, slots))
    if rope is not None:
        rope = Rope(rope.cos.expand((b, 1, d)), rope.sin.expand((b, 1, d)))
    _cut(graph, Call(q, k, v, k_cache, v_cache, out, position, mask, rope, scale))


def _check(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    position: Tensor | None,
    rope: Rope | None,
) -> None:
    def shapes() -> str:
        return f"query {q}, key {k}, value {v}, caches {k_cache} and {v_cache}, result {out}"

    if any(t is not None and t.ndim != 4 for t in (q, k, v, k_cache, v_cache, out)) or q.sizes[2] != 1:
        raise RuntimeError(f"decode attention: expected 4 dimensions and one query row a head, got {shapes()}")
    b, h, _, d = q.sizes
    heads = k_cache.sizes[1]
    fits = (
        k_cache.sizes == v_cache.sizes
        and (k_cache.sizes[0], k_cache.sizes[3]) == (b, d)
        and out.sizes == q.sizes
        and heads > 0
        and h % heads == 0
        and (k is None) == (v is None)
        and all(t is None or t.sizes == (b, heads, 1, d) for t in (k, v))
    )
    if not fits:
        raise RuntimeError(f"decode attention: shapes do not fit: {shapes()}; query heads must be a multiple of key heads")
    if d > MOST_DIM:
        raise RuntimeError(f"decode attention: head dimensions above {MOST_DIM} are not supported, got {d}")
    if any(t is not None and not t.dtype.is_float for t in (q, k, v, k_cache, v_cache, out)):
        raise RuntimeError(f"decode attention: expected floating-point tensors, got {shapes()}")
    if k_cache.dtype is not v_cache.dtype:
        raise RuntimeError(f"decode attention: the caches must have one dtype, got {k_cache} and {v_cache}")
    if position is None and k is not None:
        raise RuntimeError("decode attention: new entries need a position in the cache")
    if position is not None and (position.numel != 1 or position.dtype.cls not in "il"):
        raise RuntimeError(f"decode attention: position must be one integer, got {position}")
    if rope is not None and d % 2:
        raise RuntimeError(f"decode attention: rotary embedding needs an even head dimension, got {d}")


def _cut(graph: Graph, call: Call) -> None:
    """Splits along batch or heads where a binding or the grid is too small, then launches."""
    limit = target().limits["maxStorageBufferBindingSize"]
    large = max(t.extent * t.dtype.itemsize for t in (call.k_cache, call.v_cache)) + 256 > limit
    b, heads = call.k_cache.sizes[:2]
    if not large and b <= MAX_GROUPS and call.q.sizes[1] <= MAX_GROUPS:
        return _launch(graph, call)
    dim = 0 if b > 1 else 1
    size = call.k_cache.sizes[dim]
    if size == 1:
        raise LimitError(
            f"decode attention: the cache of one key/value head, {call.k_cache}, exceeds the largest storage binding of "
            f"{limit} bytes; use a shorter cache or a narrower dtype"
        )
    repeat = call.q.sizes[1] // heads if dim else 1
    for start, length in ((0, size // 2), (size // 2, size - size // 2)):

        def part(t: Tensor, n: int = 1, start: int = start, length: int = length) -> Tensor:
            return t.narrow(dim, start * n, length * n)

        rope = call.rope if call.rope is None or dim else Rope(part(call.rope.cos), part(call.rope.sin))
        _cut(
            graph,
            Call(
                part(call.q, repeat),
                None if call.k is None else part(call.k),
                None if call.v is None else part(call.v),
                part(call.k_cache),
                part(call.v_cache),
                part(call.out, repeat),
                call.position,
                None if call.mask is None else part(call.mask, repeat),
                rope,
                call.scale,
            ),
        )


# ---------------------------------------------------------------------------------------------------- geometry


def _per_word(t: Tensor, whole: bool) -> int:
    return t.dtype.per_word if whole else 1


def _shared_bytes(heads: int, tile: int, dim: int) -> int:
    """Workgroup memory that the template declares, in bytes (an upper bound)."""
    lanes = WORKGROUP // tile
    scratch = max(heads * tile * (lanes + 1), heads * WORKGROUP)
    return 4 * (heads * dim + 2 * dim + scratch + 3 * heads * tile + 3 * heads + 4)


def _shape(call: Call, width: int) -> tuple[int, int, int]:
    """(query heads a workgroup, keys a tile, workgroups along the cache) for rows of ``width`` words."""
    b, h, _, dim = call.q.sizes
    heads, slots = call.k_cache.sizes[1:3]
    repeat = h // heads
    if target().adapter.kind == "cpu":  # small tiles: a shader that compiles soon
        return 1, 16, 1
    if slots <= SHORT:
        return 1, 64 if width <= 64 else 32 if width <= 128 else 16, 1
    tile = 32 if width <= 128 else 16
    shared = max(
        n
        for n in range(1, MOST_HEADS + 1)
        if repeat % n == 0 and n * tile <= WORKGROUP and _shared_bytes(n, tile, dim) <= SHARED_BYTES
    )
    groups = b * h // shared
    tiles = -(-slots // tile)
    return shared, tile, min(tiles, max(1, SPREAD // groups))


# ---------------------------------------------------------------------------------------------------- launches


def _operands(graph: Graph, call: Call, whole: bool, target: Tensor) -> list[tuple[str, Tensor, str]]:
    """The launch's arguments; ``target`` is the result, or what the second launch combines."""
    cache_mode = "r" if call.k is None else "p" if whole and call.k_cache.dtype.packed else "w"
    value_mode = "r" if call.v is None else "p" if whole and call.v_cache.dtype.packed else "w"
    args = [("q", call.q, "r"), ("kc", call.k_cache, cache_mode), ("vc", call.v_cache, value_mode)]
    args.append(("o", target, "p" if target.dtype.packed and whole_rows(target) else "w"))
    if call.k is not None and call.v is not None:
        args += [("k", call.k, "r"), ("v", call.v, "r")]
    if call.rope is not None:
        args += [("cos", call.rope.cos, "r"), ("sin", call.rope.sin, "r")]
    if call.position is not None:
        args += [("pos", call.position, "r"), ("e", graph.error_tensor(), "a")]
    if call.mask is not None:
        args.append(("mask", call.mask, "r"))
    return args


def _gathered(graph: Graph, call: Call) -> Call:
    """The small operands copied into one buffer, for adapters with few storage bindings."""
    small = [t for t in (call.q, call.k, call.v) if t is not None]
    if call.rope is not None:
        small += [call.rope.cos, call.rope.sin]
    buffer = graph.new((sum(t.numel for t in small),), F32)
    at, copies = 0, []
    for t in small:
        copy = buffer.narrow(0, at, t.numel).reshape(t.sizes)
        copy_into(graph, t, copy)
        copies.append(copy)
        at += t.numel
    it = iter(copies)
    q = next(it)
    k, v = (None, None) if call.k is None else (next(it), next(it))
    rope = None if call.rope is None else Rope(next(it), next(it))
    return replace(call, q=q, k=k, v=v, rope=rope)


def _launch(graph: Graph, call: Call) -> None:
    if takes_row(call):
        return launch_row(graph, call)
    whole = whole_rows(call.k_cache) and whole_rows(call.v_cache)
    per = _per_word(call.k_cache, whole)
    width = call.dim // per
    heads, tile, chunks = _shape(call, width)
    call = replace(call, heads=heads, tile=tile, chunks=chunks)
    b, h, _, d = call.q.sizes
    result = call.out if chunks == 1 else graph.new((b * h * chunks * (d + 2),), F32)
    args = _operands(graph, call, whole, result)
    if len({t.buffer for _, t, _ in args}) > target().limits["maxStorageBuffersPerShaderStage"]:
        call = _gathered(graph, call)
        args = _operands(graph, call, whole, result)

    def source(w: Words) -> str:
        return _source(w, call, whole, args)

    kind = "" if call.mask is None else call.mask.dtype.cls
    static = (d, whole, heads, tile, chunks > 1, kind, call.k is not None, call.rope is not None, call.position is not None)
    groups = (chunks, h // heads, b)
    graph.launch("decode_attention", args, lambda w: fill_words(w, call), source, groups, static)
    if chunks > 1:
        _combine(graph, result, call.out, chunks)


def _source(w: Words, call: Call, whole: bool, args: list[tuple[str, Tensor, str]]) -> str:
    per = _per_word(call.k_cache, whole)
    width = call.dim // per
    lanes = WORKGROUP // call.tile
    parts = max(1, min(WORKGROUP // width, call.tile))
    index = {name: i for i, (name, _, _) in enumerate(args)}
    modes = {name: mode for name, _, mode in args}
    dtype = call.k_cache.dtype
    rounded = {F16: "f16value(f16bits({}))", BF16: "bitcast<f32>(bf16bits({}) << 16u)"}.get(dtype, "{}")
    position = "" if call.position is None else wgsl.cast("ld_pos(0u)", call.position.dtype.cls, "l")
    return render(
        "decode_attention",
        w=w,
        workgroup=WORKGROUP,
        D=call.dim,
        heads=call.heads,
        tile=call.tile,
        lanes=lanes,
        parts=parts,
        part_keys=-(-call.tile // parts),
        width=width,
        per=per,
        whole=whole,
        offset_k=wgsl.word(index["kc"]),
        offset_v=wgsl.word(index["vc"]),
        unpack=_unpack(call.k_cache, per),
        pack=_pack(dtype.name, per, rounded),
        split=call.chunks > 1,
        fresh=call.k is not None,
        rope=call.rope is not None,
        position=position,
        mask="" if call.mask is None else call.mask.dtype.cls,
        out=store(call.out, modes["o"]),
    )


def _unpack(t: Tensor, per: int) -> str:
    """WGSL that turns a word into its ``per`` values."""
    if per == 1:
        return "bitcast<f32>({0})"
    return {F16: "unpack2x16float({0})", BF16: "vec2<f32>(bitcast<f32>({0} << 16u), bitcast<f32>({0} & 0xffff0000u))"}[
        t.dtype
    ]


def _pack(name: str, per: int, rounded: str) -> str:
    """WGSL that makes a word of ``per`` values."""
    if per == 1:
        return "bitcast<u32>(" + rounded.format("{0}") + ")"
    bits = "f16bits" if name == "float16" else "bf16bits"
    return f"({bits}({{0}}) | ({bits}({{1}}) << 16u))"


def _combine(graph: Graph, parts: Tensor, out: Tensor, chunks: int) -> None:
    b, h, _, d = out.sizes
    mode = "p" if out.dtype.packed and whole_rows(out) else "w"

    def words(w: Words) -> None:
        w.u32("H", h)
        w.u32("chunks", chunks)
        w.u32("stats", b * h * chunks * d)
        for axis, stride in zip("zhld", out.strides, strict=True):
            w.u32(f"o_{axis}", stride)

    def source(w: Words) -> str:
        rows = max(1, WORKGROUP // d)
        context = {"workgroup": WORKGROUP, "D": d, "parts": rows, "batch": READ_AHEAD, "out": store(out, mode)}
        return render("decode_attention_combine", w=w, **context)

    graph.launch("decode_combine", [("p", parts, "r"), ("o", out, mode)], words, source, (h, b, 1), d)
