"""Recognises rotary embeddings, grouped-query attention, and a decode step over a static cache."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from ..kernels.decode_attention import Rope, decode_attention
from ..kernels.pointwise import emit
from ..recipe import Graph, Scalar, Tensor
from ..registry import apply, entry_of
from ..wgsl import F32
from .ir import DeferredGraph
from .lower import Fused
from .matching import argument, aten, constant_value, is_op, replace_with, shape, single_user

# ---------------------------------------------------------------------------------------------------- rotary embedding


def lower_rope(graph: DeferredGraph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x * cos + cat(-x[D/2:], x[:D/2]) * sin`` along the last dimension, in two launches without copies."""
    half = x.sizes[-1] // 2
    out = graph.new(x.sizes, x.dtype)
    cos, sin = cos.expand(x.sizes), sin.expand(x.sizes)
    last = x.ndim - 1
    for start, other, sign in ((0, half, "-"), (half, 0, "+")):
        part = [t.narrow(last, start, half) for t in (x, cos, sin)]
        rotated = x.narrow(last, other, half)
        target = out.narrow(last, start, half)
        emit(graph, f"({{0}} * {{1}} {sign} {{3}} * {{2}})", [*part, rotated], ["f"] * 4, "f", target, "rope")
    return out


ROPE = Fused("rope", lower_rope)


def rotary_embeddings(module: fx.GraphModule) -> fx.GraphModule:
    """The rotate-half form that Hugging Face models write becomes ``rope(x, cos, sin)``."""
    for node in list(module.graph.nodes):
        if is_op(node, aten.add.Tensor) and not node.kwargs:
            found = _rope(node)
            if found is not None:
                replace_with(node, ROPE, found)
    module.graph.eliminate_dead_code()
    return module


def _rope(add: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    if not all(is_op(a, aten.mul.Tensor) for a in add.args[:2]):
        return None
    for plain, turned in (add.args[:2], add.args[1::-1]):
        for cat, sin in (turned.args[:2], turned.args[1::-1]):  # type: ignore[union-attr]
            x = _rotated_half(cat)
            if x is None or x not in plain.args:  # type: ignore[union-attr]
                continue
            cos = next(a for a in plain.args if a is not x)  # type: ignore[union-attr]
            if isinstance(cos, fx.Node) and isinstance(sin, fx.Node) and shape(add) == shape(x):
                return x, cos, sin
    return None


def _rotated_half(cat: Any) -> fx.Node | None:
    """x of ``cat([-x[..., D/2:], x[..., :D/2]], -1)``."""
    if not is_op(cat, aten.cat.default) or len(cat.args[0]) != 2:
        return None
    negated, low = cat.args[0]
    if not is_op(negated, aten.neg.default) or not is_op(low, aten.slice.Tensor):
        return None
    high = negated.args[0]
    if not is_op(high, aten.slice.Tensor) or high.args[0] is not low.args[0]:
        return None
    x = low.args[0]
    rank, size = len(shape(x)), shape(x)[-1]
    dims = {argument(cat, 1, "dim", 0) % rank, argument(low, 1, "dim", 0) % rank, argument(high, 1, "dim", 0) % rank}
    if dims != {rank - 1} or not isinstance(size, int) or size % 2:
        return None
    starts = argument(low, 2, "start") or 0, argument(low, 3, "end"), argument(high, 2, "start"), argument(high, 3, "end")
    if starts[:3] != (0, size // 2, size // 2) or (isinstance(starts[3], int) and starts[3] < size):
        return None
    found: fx.Node = x
    return found


# ---------------------------------------------------------------------------------------------------- attention


def lower_attention(
    graph: DeferredGraph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """Attention of q (B, H, M, D) over k, v (B, Hkv, L, D); H may be a multiple of Hkv."""
    entry = entry_of("webgpu::attention")
    assert entry is not None
    found: Tensor = apply(graph, entry, [q, k, v, mask, causal, Scalar(graph, -1, False, scale, F32, True)])[0]
    return found


ATTENTION = Fused("attention", lower_attention)
_SDPA = aten._scaled_dot_product_fused_attention_overrideable.default


def attentions(module: fx.GraphModule) -> fx.GraphModule:
    """Attention ops take keys and values before they are repeated for grouped queries, and bool masks as they are."""
    for node in list(module.graph.nodes):
        if not is_op(node, _SDPA) or argument(node, 4, "dropout_p", 0.0) or set(node.kwargs) - {"scale"}:
            continue
        first = single_user(node)
        if first is None or first.target is not operator.getitem or first.args[1] != 0:
            continue
        q, k, v = node.args[:3]
        width = shape(q)[-1]
        scale = node.kwargs.get("scale")
        if scale is None:
            scale = width**-0.5
        keys, values = _before_repeat(k), _before_repeat(v)
        if (keys is None) != (values is None):
            keys = values = None
        mask = argument(node, 3, "attn_bias")
        args = (q, keys or k, values or v, _bool_mask(mask) or mask, bool(argument(node, 5, "is_causal", False)), scale)
        replace_with(first, ATTENTION, args)
        module.graph.erase_node(node)  # dropout makes it an op that dead code elimination may keep
    module.graph.eliminate_dead_code()
    return module


def _before_repeat(node: Any) -> fx.Node | None:
    """x (B, Hkv, L, D) of ``x[:, :, None].expand(B, Hkv, n, L, D).reshape(B, Hkv * n, L, D)``."""
    if not is_op(node, aten._unsafe_view.default, aten.view.default, aten.reshape.default):
        return None
    inner = node.args[0]
    if is_op(inner, aten.clone.default):
        inner = inner.args[0]
    if not is_op(inner, aten.expand.default) or not is_op(inner.args[0], aten.unsqueeze.default):
        return None
    unsqueezed = inner.args[0]
    x = unsqueezed.args[0]
    wide = shape(inner)
    if len(wide) != 5 or unsqueezed.args[1] % 5 != 2 or len(shape(node)) != 4:
        return None
    if (*wide[:2], *wide[3:]) != shape(x) or shape(node) != (wide[0], wide[1] * wide[2], wide[3], wide[4]):
        return None
    found: fx.Node = x
    return found


def _bool_mask(mask: Any) -> fx.Node | None:
    """m of ``where(m, 0, -inf)``."""
    if not is_op(mask, aten.where.self):
        return None
    if constant_value(mask.args[1]) == 0.0 and constant_value(mask.args[2]) == float("-inf"):
        found: fx.Node = mask.args[0]
        return found
    return None


# ---------------------------------------------------------------------------------------------------- decode step


@dataclass
class DecodeAttention:
    """One query over a static cache whose row ``position`` is written first (``kernels.decode_attention``)."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    out: Tensor
    position: Tensor
    mask: Tensor | None
    rope: Rope | None
    scale: float
    name: str = "decode_attention"

    def reads(self) -> list[Tensor]:
        found = [self.q, self.k, self.v, self.k_cache, self.v_cache, self.position]
        found += [self.mask] if self.mask is not None else []
        return found + ([self.rope.cos, self.rope.sin] if self.rope is not None else [])

    def writes(self) -> list[Tensor]:
        return [self.out, self.k_cache, self.v_cache]

    def map_tensors(self, place: Callable[[Tensor], Tensor]) -> DecodeAttention:
        moved = {f: place(getattr(self, f)) for f in ("q", "k", "v", "k_cache", "v_cache", "out", "position")}
        mask = None if self.mask is None else place(self.mask)
        rope = None if self.rope is None else Rope(place(self.rope.cos), place(self.rope.sin))
        return DecodeAttention(**moved, mask=mask, rope=rope, scale=self.scale)

    def launch(self, graph: Graph) -> None:
        decode_attention(
            graph,
            self.q,
            self.k,
            self.v,
            self.k_cache,
            self.v_cache,
            self.out,
            position=self.position,
            mask=self.mask,
            scale=self.scale,
            rope=self.rope,
        )


def lower_decode(
    graph: DeferredGraph,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    position: Tensor,
    mask: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    scale: float,
) -> Tensor:
    """A ``DecodeAttention`` step; q and k are rotated by cos, sin where given."""
    b, h, _, d = q.sizes
    out = graph.new((b, h, 1, d), q.dtype, (h * d, d, h * d, 1))
    rope = None
    if cos is not None and sin is not None:
        rope = Rope(_table(cos, b), _table(sin, b))
    graph.collected.append(DecodeAttention(q, k, v, k_cache, v_cache, out, position, mask, rope, scale))
    return out


def _table(t: Tensor, batch: int) -> Tensor:
    """(B, 1, 1, D) or (B, 1, D) as (B, 1, D)."""
    if t.ndim == 4:
        t = t.view((t.sizes[0], t.sizes[2], t.sizes[3]), (t.strides[0], t.strides[2], t.strides[3]))
    return t


DECODE_ATTENTION = Fused("decode_attention", lower_decode)


def decode_attentions(module: fx.GraphModule) -> fx.GraphModule:
    """Attention of one query over caches that this step wrote in place becomes one op that rotates, writes and attends."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is ATTENTION:
            found = _decode(node)
            if found is not None:
                replace_with(node, DECODE_ATTENTION, found)
                for update in (found[3], found[4]):
                    assert isinstance(update, fx.Node)
    _erase_written(module)
    module.graph.eliminate_dead_code()
    return module


def _decode(node: fx.Node) -> tuple[Any, ...] | None:
    q, keys, values, mask, causal, scale = node.args
    assert isinstance(q, fx.Node)
    if causal or shape(q)[2] != 1 or shape(q)[3] > 256 or shape(q)[3] % 2:  # type: ignore[operator]
        return None
    for update in (keys, values):
        if not is_op(update, aten.index_copy_.default) or single_user(update) is not node:  # type: ignore[arg-type]
            return None
    (k_cache, k_dim, k_at, k), (v_cache, v_dim, v_at, v) = keys.args, values.args  # type: ignore[union-attr]
    if k_at is not v_at or k_dim != 2 or v_dim != 2 or shape(k_at) != (1,) or shape(k)[2] != 1 or shape(v)[3] != shape(q)[3]:
        return None
    cos = sin = None
    turned = [n for n in (q, k) if n.target is ROPE]
    if len(turned) == 2 and q.args[1] is k.args[1] and q.args[2] is k.args[2]:
        (q, cos, sin), k = q.args, k.args[0]  # type: ignore[assignment]
    for update in (keys, values):
        update.meta["replaced"] = True  # type: ignore[union-attr]
    return q, k, v, k_cache, v_cache, k_at, mask, cos, sin, scale


def _erase_written(module: fx.GraphModule) -> None:
    """In-place updates that a decode step now does itself."""
    for node in reversed(list(module.graph.nodes)):
        if node.meta.get("replaced") and not node.users:
            module.graph.erase_node(node)
