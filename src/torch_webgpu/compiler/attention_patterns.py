"""Recognises rotary embeddings, grouped-query attention, and a decode step over a static cache."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..kernels.decode_attention import Rope, decode_attention
from ..kernels.pointwise import collapse, index_code, index_words
from ..ops.gather import gather
from ..recipe import Graph, Scalar, Tensor, Words
from ..registry import apply, entry_of
from ..wgsl import F32
from .ir import DeferredGraph
from .lower import Fused
from .matching import argument, aten, constant_value, is_op, is_tensor, replace_with, shape, single_user

# ---------------------------------------------------------------------------------------------------- rotary embedding


def lower_rope(graph: DeferredGraph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x * cos + cat(-x[D/2:], x[:D/2]) * sin`` along the last dimension of a tensor of any rank, in one launch."""
    out = graph.new(x.sizes, x.dtype)
    tensors = {"x": x, "c": cos.expand(x.sizes), "s": sin.expand(x.sizes)}
    sizes, strides = collapse(x.sizes[:-1], [t.strides[:-1] for t in tensors.values()])
    places = dict(zip(tensors, strides, strict=True))

    def words(w: Words) -> None:
        w.u32("D", x.sizes[-1])
        index_words(w, sizes, places)
        for name, t in tensors.items():
            w.u32(f"{name}d", t.strides[-1])

    def functions(w: Words) -> str:
        half = f"({w.D} / 2u)"
        at = {name: f"x_{name} + d * {w.expr(f'{name}d')}" for name in tensors}
        return (
            f"fn value_(i: u32) -> f32 {{\nlet d = i % {w.D}; let row = i / {w.D};\n"
            f"{index_code(w, len(sizes), list(tensors), 'row')}\n"
            f"let other = ld_x(x_x + select(d - {half}, d + {half}, d < {half}) * {w.expr('xd')});\n"
            f"return ld_x({at['x']}) * ld_c({at['c']}) + select(other, -other, d < {half}) * ld_s({at['s']});\n}}"
        )

    return gather(graph, "rope", out, list(tensors.items()), words, functions, len(sizes))


def _eager_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


ROPE = Fused("rope", lower_rope, _eager_rope)


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
            if is_tensor(cos) and is_tensor(sin) and shape(add) == shape(x):
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


ATTENTION = Fused("attention", lower_attention, lambda *args: torch.ops.webgpu.attention(*args))
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
        if scale is None and not isinstance(width, int):
            continue
        scale = width**-0.5 if scale is None else scale
        keys, values = _before_repeat(k), _before_repeat(v)
        if (keys is None) != (values is None):
            keys = values = None
        mask = argument(node, 3, "attn_bias")
        args = (q, keys or k, values or v, _bool_mask(mask) or mask, bool(argument(node, 5, "is_causal", False)), scale)
        replace_with(first, ATTENTION, args)
        module.graph.erase_node(node)  # counts as random, which dead code elimination may keep
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
        moved: dict[str, Any] = {
            f: place(getattr(self, f)) for f in ("q", "k", "v", "k_cache", "v_cache", "out", "position")
        }
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


def _eager_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    position: torch.Tensor,
    mask: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    if cos is not None and sin is not None:
        q, k = _eager_rope(q, cos, sin), _eager_rope(k, cos, sin)
    k_cache.index_copy_(2, position, k)
    v_cache.index_copy_(2, position, v)
    found: torch.Tensor = torch.ops.webgpu.attention(q, k_cache, v_cache, mask, False, scale)
    return found


DECODE_ATTENTION = Fused("decode_attention", lower_decode, _eager_decode)


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
    operands: tuple[Any, ...] = node.args
    q, keys, values, mask, causal, scale = operands
    width = shape(q)[3]
    if causal or shape(q)[2] != 1 or not isinstance(width, int) or width > 256 or width % 2:
        return None
    for update in (keys, values):
        if not is_op(update, aten.index_copy_.default) or single_user(update) is not node:
            return None
    (k_cache, k_dim, k_at, k), (v_cache, v_dim, v_at, v) = keys.args, values.args
    if k_at is not v_at or k_dim != 2 or v_dim != 2 or shape(k_at) != (1,) or shape(k)[2] != 1 or shape(v)[3] != shape(q)[3]:
        return None
    cos = sin = None
    turned = [n for n in (q, k) if n.target is ROPE]
    if len(turned) == 2 and q.args[1] is k.args[1] and q.args[2] is k.args[2]:
        (q, cos, sin), k = q.args, k.args[0]
    for update in (keys, values):
        update.meta["replaced"] = True
    if _up_to(mask, k_at, shape(k_cache)[2]):
        mask = None  # what the kernel does by itself
    return q, k, v, k_cache, v_cache, k_at, mask, cos, sin, scale


def _up_to(mask: Any, position: fx.Node, slots: Any) -> bool:
    """Whether a mask is ``arange(slots) <= position`` along the last dimension, the same for all rows."""
    mask = _without_views(mask)
    if not is_op(mask, aten.le.Tensor) or shape(mask)[-1] != slots or any(n != 1 for n in shape(mask)[:-1]):
        return False
    every, last = map(_without_views, mask.args)
    counts = is_op(every, aten.arange.default, aten.arange.start, aten.arange.start_step)
    return counts and every.args in ((slots,), (0, slots), (0, slots, 1)) and last is _without_views(position)


def _without_views(node: Any) -> Any:
    """The tensor whose elements a chain of views that keeps their order shows."""
    while is_op(node, aten.expand.default, aten.unsqueeze.default, aten.view.default, aten.alias.default):
        node = node.args[0]
    return node


def _erase_written(module: fx.GraphModule) -> None:
    """In-place updates that a decode step now does itself."""
    for node in reversed(list(module.graph.nodes)):
        if node.meta.get("replaced") and not node.users:
            module.graph.erase_node(node)
