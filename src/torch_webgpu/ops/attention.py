"""Scaled dot-product attention in one kernel (forward; with gradients PyTorch composes it of products and softmax)."""

from __future__ import annotations

from typing import Any

from ..kernels import render
from ..kernels.decode_attention import decode_attention
from ..recipe import MAX_GROUPS, Graph, Tensor, Words
from ..registry import lower

WORKGROUP = 128


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise RuntimeError(f"attention: query, key and value must have 4 dimensions, got {q}, {k}, {v}")
    if q.sizes[3] != k.sizes[3] or k.sizes[:3] != v.sizes[:3] or q.sizes[0] != k.sizes[0] or q.sizes[1] % k.sizes[1]:
        raise RuntimeError(
            f"attention: shapes do not fit: query {q}, key {k}, value {v}; heads of the query must be a multiple"
        )
    if q.sizes[3] > 2 * WORKGROUP or v.sizes[3] > 2 * WORKGROUP:
        raise RuntimeError(
            f"attention: head dimensions above {2 * WORKGROUP} are not supported, got {q.sizes[3]}, {v.sizes[3]}"
        )
    if max(q.sizes[:3]) > MAX_GROUPS:
        raise RuntimeError(f"attention: more than {MAX_GROUPS} queries, heads or batches, got {q}; split the sequence")


@lower("webgpu::attention")
def _attention(graph: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: Any) -> Tensor:
    """Query (B, H, L, D), key (B, Hk, S, D), value (B, Hk, S, E), mask broadcast to (B, H, L, S) → (B, H, L, E).

    The result is laid out (B, L, H, E), so that merging the heads copies nothing. ``causal`` is aligned at the top left.
    """
    _check(q, k, v)
    b, h, length, d = q.sizes
    e = v.sizes[3]
    out = graph.new((b, h, length, e), q.dtype, (length * h * e, e, h * e, 1))
    if out.numel == 0:
        return out
    if length == 1 and d == e and k.dtype is v.dtype:
        if causal:  # aligned at the top left, so the first key alone
            k, v = k.narrow(2, 0, min(k.sizes[2], 1)), v.narrow(2, 0, min(v.sizes[2], 1))
            mask = mask if mask is None or mask.sizes[-1] == 1 else mask.narrow(mask.ndim - 1, 0, k.sizes[2])
        decode_attention(graph, q, None, None, k, v, out, position=None, mask=mask, scale=scale)
        return out
    if mask is not None:
        mask = mask.expand((b, h, length, k.sizes[2]))

    def words(w: Words) -> None:
        w.u32("D", d)
        w.u32("E", e)
        w.u32("K", k.sizes[2])
        w.u32("repeat", h // k.sizes[1])
        w.number("scale", scale, "f")
        for name, t in (("q", q), ("k", k), ("v", v), ("o", out), ("m", mask)):
            if t is not None:
                for axis, stride in zip("zhmd", t.strides, strict=True):
                    w.u32(name + axis, stride)

    kind = mask.dtype.cls if mask is not None else ""

    def source(w: Words) -> str:
        return render("attention", w=w, workgroup=WORKGROUP, causal=causal, mask=kind)

    args = [("q", q, "r"), ("k", k, "r"), ("v", v, "r"), ("o", out, "w")] + (
        [("mask", mask, "r")] if mask is not None else []
    )
    graph.launch("attention", args, words, source, (length, h, b), (causal, kind))
    return out
