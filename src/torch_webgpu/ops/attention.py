"""Scaled dot-product attention in one kernel (forward; with gradients PyTorch composes it of products and softmax)."""

from __future__ import annotations

from typing import Any

from .. import wgsl
from ..errors import LimitError
from ..kernels import render
from ..kernels.decode_attention import decode_attention
from ..recipe import MAX_GROUPS, Graph, Tensor, Words
from ..registry import lower
from ..runtime import target
from ..wgsl import BF16, F16

MOST_DIM = 256
SHARED_BYTES = 16384
TILE_KEYS = 32  # keys a tile
ENOUGH = 256  # workgroups that fill a large GPU


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise RuntimeError(f"attention: query, key and value must have 4 dimensions, got {q}, {k}, {v}")
    if q.sizes[3] != k.sizes[3] or k.sizes[:3] != v.sizes[:3] or q.sizes[0] != k.sizes[0] or q.sizes[1] % k.sizes[1]:
        raise RuntimeError(
            f"attention: shapes do not fit: query {q}, key {k}, value {v}; heads of the query must be a multiple"
        )
    if q.sizes[3] > MOST_DIM or v.sizes[3] > MOST_DIM:
        raise RuntimeError(f"attention: head dimensions above {MOST_DIM} are not supported, got {q.sizes[3]}, {v.sizes[3]}")


@lower("webgpu::attention")
def _attention(graph: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: Any) -> Tensor:
    """Query (B, H, L, D), key (B, Hk, S, D), value (B, Hk, S, E), mask broadcast to (B, H, L, S) → (B, H, L, E).

    The result is laid out (B, L, H, E), so that merging the heads copies nothing. ``causal`` is aligned at the top left.
    """
    _check(q, k, v)
    b, h, length, _ = q.sizes
    e = v.sizes[3]
    out = graph.new((b, h, length, e), q.dtype, (length * h * e, e, h * e, 1))
    if out.numel:
        attend(graph, q, k, v, out, mask=mask, causal=causal, scale=scale)
    return out


def attend(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *, mask: Tensor | None, causal: bool, scale: Any
) -> None:
    """``out = softmax(scale * q k^T + mask) v``; a row whose keys are all masked gives 0.

    Args:
        q: (B, H, L, D), float, any strides, D ≤ 256.
        k, v: (B, Hk, S, D) and (B, Hk, S, E), H a multiple of Hk.
        out: (B, H, L, E), float, any strides; shares no element with the others.
        mask: bool or float, broadcast to (B, H, L, S).
        causal: query i sees keys 0 to i.
    """
    b, h, length, d = q.sizes
    if length == 1 and d == v.sizes[3] and k.dtype is v.dtype:
        if causal:  # the first key alone
            k, v = (t.narrow(2, 0, min(t.sizes[2], 1)) for t in (k, v))
            mask = mask if mask is None or mask.sizes[-1] == 1 else mask.narrow(mask.ndim - 1, 0, k.sizes[2])
        return decode_attention(graph, q, None, None, k, v, out, position=None, mask=mask, scale=scale)
    if mask is not None:
        mask = mask.expand((b, h, length, k.sizes[2]))
    _cut(graph, q, k, v, out, mask, causal, scale, 0)


def _cut(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None, causal: bool, scale: Any, first: int
) -> None:
    """Splits along batch, heads or queries where a binding or the grid is too small, then launches.

    ``first`` is the number of queries before these, for causal attention.
    """
    limit = target().limits["maxStorageBufferBindingSize"]

    def fits(*tensors: Tensor | None) -> bool:
        return all(t is None or t.extent * t.dtype.itemsize + 256 <= limit for t in tensors)

    b, h, length, _ = q.sizes
    if fits(q, k, v, out, mask) and max(b, h) <= MAX_GROUPS and length <= MAX_GROUPS * 16:
        return _launch(graph, q, k, v, out, mask, causal, scale, first)
    groups = k.sizes[1]
    dim = 0 if b > 1 else 1 if groups > 1 else 2
    size = (b, groups, length)[dim]
    if size == 1 or (dim == 2 and not fits(k, v)):
        raise LimitError(
            f"attention: one head of {q}, {k}, {v} exceeds the largest storage binding of {limit} bytes; shorten the "
            "sequence or use a narrower dtype"
        )
    for start, n in ((0, size // 2), (size // 2, size - size // 2)):
        r = h // groups if dim == 1 else 1  # query heads a key head
        queries, results = (t.narrow(dim, start * r, n * r) for t in (q, out))
        keys, values = (t if dim == 2 else t.narrow(dim, start, n) for t in (k, v))
        bias = None if mask is None else mask.narrow(dim, start * r, n * r)
        _cut(graph, queries, keys, values, results, bias, causal, scale, first + (start if dim == 2 else 0))


def _how(t: Tensor) -> str:
    """How four neighbours of a row are read: ``v`` as a vector, ``p`` as two words, ``s`` one by one."""
    per = 4 if t.dtype.per_word == 1 else 2
    strides = all(s % per == 0 for n, s in zip(t.sizes[:3], t.strides[:3], strict=True) if n > 1)
    if t.strides[3] != 1 or t.sizes[3] % 4 or not strides:
        return "s"
    if per == 4:
        return "v" if t.aligned(16) else "s"
    return "p" if t.aligned(4) else "s"


def _shape(groups: int, length: int, blocks: int) -> tuple[int, int]:
    """(rows of 16 queries a workgroup, keys of values staged at once)."""
    rows = 3 if blocks <= 4 and groups * -(-length // 48) >= ENOUGH else 2 if length > 16 else 1
    room = (SHARED_BYTES - 32 - 3072 * rows - 2048) // (128 * blocks)
    return rows, next(n for n in (32, 16, 8, 4) if n <= room)


def _pack(t: Tensor) -> int:
    """Neighbouring results stored as one word: 2 for 16-bit floats in rows of whole words, else 1."""
    whole = (
        t.dtype.packed
        and t.strides[3] == 1
        and t.sizes[3] % 2 == 0
        and t.aligned(4)
        and all(s % 2 == 0 for n, s in zip(t.sizes[:3], t.strides[:3], strict=True) if n > 1)
    )
    return 2 if whole else 1


def _launch(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None, causal: bool, scale: Any, first: int
) -> None:
    b, h, length, d = q.sizes
    e = v.sizes[3]
    blocks = -(-e // 32)
    rows, keys = _shape(b * h, length, blocks)
    kind = mask.dtype.cls if mask is not None else ""
    how = tuple(_how(t) for t in (q, k, v))
    pack = _pack(out)
    # Where code runs a few times only, loops that the driver could unroll cost more to compile than they save.
    rolled = target().adapter.kind == "cpu"
    counts = (1, 2, 4, 8)

    def words(w: Words) -> None:
        for n in counts:
            w.u32(f"count{n}", n)
        for name, value in (("D", d), ("E", e), ("K", k.sizes[2]), ("M", length), ("first", first)):
            w.u32(name, value)
        w.u32("repeat", h // k.sizes[1])
        w.number("scale", scale, "f")
        for name, t in (("q", q), ("k", k), ("v", v), ("o", out), ("m", mask)):
            if t is not None:
                for axis, stride in zip("zhmd", t.strides, strict=True):
                    w.u32(name + axis, stride)

    def source(w: Words) -> str:
        unpack = {
            F16: "unpack2x16float({0})",
            BF16: "vec2<f32>(bitcast<f32>({0} << 16u), bitcast<f32>({0} & 0xffff0000u))",
        }
        return render(
            "attention",
            w=w,
            rows=rows,
            keys=keys,
            blocks=blocks,
            count={n: w.expr(f"count{n}") if rolled else f"{n}u" for n in counts},
            causal=causal,
            mask=kind,
            how_q=how[0],
            how_k=how[1],
            how_v=how[2],
            offset={name: wgsl.word(i) for i, name in enumerate("qkv")},
            unpack={name: unpack.get(t.dtype, "") for name, t in (("q", q), ("k", k), ("v", v))},
            pack=pack,
            bits="f16bits" if out.dtype is F16 else "bf16bits",
        )

    args = [(name, t, "v" if x == "v" else "r") for name, t, x in zip("qkv", (q, k, v), how, strict=True)]
    args.append(("o", out, "p" if pack == 2 else "w"))
    if mask is not None:
        args.append(("mask", mask, "r"))
    static = (rows, keys, blocks, causal, kind, how, pack, rolled)
    graph.launch("attention", args, words, source, (-(-length // (16 * rows)), h, b), static)
