"""Layers of models for random graphs (``graphs.Builder``), as models write them and almost so."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from graph_ops import Kind, is_float, reach
from graphs import FLOATS, Builder, Rejected, Value, magnitude

WIDTHS = (8, 16, 32, 33, 64, 96)


def _float(b: Builder) -> torch.dtype:
    return b.choose([dtype for dtype in FLOATS if dtype in b.dtypes])  # type: ignore[no-any-return]


def _features(b: Builder) -> Value:
    """A float tensor with few rows of a width that kernels like, new or one of those there are."""
    if b.chance(2):
        return b.value(lambda t: is_float(t) and t.ndim >= 2 and t.shape[-1] in WIDTHS and magnitude(t) < 30)
    sizes = b.choose(
        ((1, 16), (1, 1, 16), (2, 8), (1, 32), (3, 16), (2, 3, 8), (1, 64), (17, 8), (33, 16), (1, 1, 96), (5, 33))
    )
    return b.new_input(sizes, _float(b))


def _weighted(b: Builder, x: Value, n: int, bias: bool = False) -> Any:
    w = b.new_input((n, x.tensor.shape[-1]), x.tensor.dtype)
    small = b.call(torch.mul, w, 0.25) if b.chance(4) else w
    extra = b.new_input((n,), x.tensor.dtype) if bias else None
    return b.call(F.linear, x, small, extra, growth=reach(x, w) + 1)


def _tamed(b: Builder, x: Value) -> Value:
    """The same within [-4, 4]."""
    return b.call(torch.clamp, x, -4, 4) if magnitude(x.tensor) > 4 else x  # type: ignore[no-any-return]


def _alike(b: Builder, x: Value) -> Value:
    """A float tensor of the same shape."""
    return b.value(lambda t: t.shape == x.tensor.shape and is_float(t))


def norm(b: Builder) -> Any:
    """RMS norm as models write it, and what only looks like it."""
    x = _features(b)
    n, dtype = x.tensor.shape[-1], x.tensor.dtype
    if not bool((x.tensor.double().square().mean(-1) >= 0.5).all()):
        raise Rejected
    gain = b.new_input((n,), dtype)
    kind = b.choose(("rms", "rms", "layer", "fused"))
    if kind == "layer":
        if not bool((x.tensor.double().var(-1) >= 0.5).all()):
            raise Rejected
        bias = b.new_input((n,), dtype) if b.chance(2) else None
        return b.call(F.layer_norm, x, (n,), gain, bias, 1e-5, rough=True)
    if kind == "fused":
        return b.call(F.rms_norm, x, (n,), gain, 1e-5, rough=True)
    wide = b.call("to", x, torch.float32)
    square = b.call("pow", wide, 2) if b.chance(2) else b.call(torch.mul, wide, wide)
    mean = b.call("mean", square, b.choose((-1, x.tensor.ndim - 1, 0)), keepdim=True, rough=True)
    root = b.call(torch.rsqrt, b.call(torch.add, mean, b.choose((1e-6, 1e-5, 1))), rough=True)
    scaled = b.call(torch.mul, b.choose((wide, x)), root)
    narrow = b.call("to", scaled, dtype)
    return b.call(torch.mul, *b.choose(((gain, narrow), (narrow, gain), (gain, scaled))))


def gated(b: Builder) -> Any:
    """Sibling projections, one of them through an activation."""
    x = _features(b)
    n = b.choose((8, 4, 16))
    bias = b.chance(3)
    gate, up = _weighted(b, x, n, bias), _weighted(b, x, n, bias)
    act = b.call(b.choose((F.silu, F.gelu, F.relu)), _tamed(b, gate), rough=True)
    hidden = b.call(torch.mul, act, up)
    if b.chance(2):
        hidden = _weighted(b, _tamed(b, hidden), x.tensor.shape[-1])
        return b.call(torch.add, *b.choose(((x, hidden), (hidden, x))))
    return hidden


def projections(b: Builder) -> Any:
    """Several layers over one input."""
    x = _features(b)
    bias = b.chance(2)
    for n in b.choose(((8, 4, 4), (8, 8), (3, 5))):
        y = _weighted(b, x, n, bias)
    return y


def rotary(b: Builder) -> Any:
    """The rotate-half form, and near misses of it."""
    x = b.value(lambda t: is_float(t) and t.ndim >= 2 and t.shape[-1] % 2 == 0 and t.shape[-1] > 0)
    n, dtype = x.tensor.shape[-1], x.tensor.dtype
    half = n // 2 if not b.chance(6) else b.integer(1, n - 1)
    cos, sin = b.new_input(b.choose(((n,), (1, n))), dtype), b.new_input((n,), dtype)
    low = b.call(operator.getitem, x, (Ellipsis, slice(None, half)))
    high = b.call(operator.getitem, x, (Ellipsis, slice(half, None)))
    turned = b.call(torch.cat, [b.call(torch.neg, high), low] if not b.chance(6) else [low, b.call(torch.neg, high)], -1)
    parts = b.call(torch.mul, x, cos), b.call(torch.mul, turned, sin)
    return b.call(torch.add, *parts)


def attention(b: Builder) -> Any:
    """Grouped queries, masks, a single query."""
    heads, groups = b.choose(((2, 1), (2, 2), (4, 2)))
    queries, keys, width, dtype = b.choose((1, 3)), b.choose((3, 5)), b.choose((8, 4)), _float(b)
    q = b.new_input((1, heads, queries, width), dtype)
    k, v = (b.new_input((1, groups, keys, width), dtype) for _ in range(2))
    q, k = b.call(torch.mul, q, 0.5), b.call(torch.mul, k, 0.5)
    mask = None
    if b.chance(2):
        mask = b.call(torch.ge, b.new_input((1, 1, queries, keys), torch.int64), 0)
        mask = mask if b.chance(2) else b.call(torch.where, mask, 0.0, b.choose((-math.inf, -1.0)))
    kwargs: dict[str, Any] = {"enable_gqa": True} if groups < heads else {}
    if kwargs and b.chance(2):
        n = heads // groups
        k, v = (
            b.call("reshape", b.call("expand", b.call("unsqueeze", t, 2), -1, -1, n, -1, -1), (1, heads, keys, width))
            for t in (k, v)
        )
        kwargs = {}
    if mask is None:
        kwargs["is_causal"] = b.chance(2)
    if mask is not None and mask.tensor.dtype.is_floating_point and mask.tensor.dtype != dtype:
        raise Rejected
    return b.call(F.scaled_dot_product_attention, q, k, v, mask, rough=True, **kwargs)


def chain(b: Builder) -> Any:
    """Layers one after another, with what moves into them: activations, factors, residuals, casts."""
    x = _features(b)
    y = x
    for _ in range(b.integer(1, 3)):
        y = _weighted(b, _tamed(b, y), b.choose((x.tensor.shape[-1], 8, 16, 5)), b.chance(2))
        for _ in range(b.integer(0, 2)):
            kind = b.choose(("act", "residual", "factor", "scale", "cast", "gate"))
            if kind == "act":
                y = b.call(b.choose((F.relu, F.silu, F.gelu, torch.tanh)), _tamed(b, y), rough=True)
            elif kind == "residual":
                y = b.call(torch.add, y, _alike(b, y))
            elif kind == "factor":
                y = b.call(torch.mul, y, b.choose((0.5, 2.0, -1)))
            elif kind == "scale":
                y = b.call(torch.mul, y, b.new_input((y.tensor.shape[-1],), y.tensor.dtype))
            elif kind == "cast":
                y = b.call("to", b.call("to", y, torch.float32), x.tensor.dtype)
            else:
                y = b.call(torch.mul, y, b.call(torch.sigmoid, _tamed(b, y), rough=True))
            if y.tensor.dtype != x.tensor.dtype:
                y = b.call("to", y, x.tensor.dtype)
    return b.call(torch.add, x, y) if y.tensor.shape == x.tensor.shape else y


def normed(b: Builder) -> Any:
    """A norm before one or several layers; sometimes it is looked at elsewhere too."""
    x = _features(b)
    dtype = x.tensor.dtype
    if not bool((x.tensor.double().square().mean(-1) >= 0.5).all()):
        raise Rejected
    gain = b.new_input((x.tensor.shape[-1],), dtype)
    if b.chance(2):
        wide = b.call("to", x, torch.float32)
        mean = b.call("mean", b.call("pow", wide, 2), -1, keepdim=True, rough=True)
        root = b.call(torch.rsqrt, b.call(torch.add, mean, 1e-6), rough=True)
        y = b.call(torch.mul, gain, b.call("to", b.call(torch.mul, wide, root), dtype))
    else:
        y = b.call(F.rms_norm, x, (x.tensor.shape[-1],), gain, 1e-5, rough=True)
    bias = b.chance(2)
    results = [_weighted(b, y, n, bias) for n in b.choose(((8,), (8, 4, 4), (16, 16)))]
    if len(results) == 2:
        act = b.call(F.silu, _tamed(b, results[0]), rough=True)
        return b.call(torch.mul, act, results[1])
    return results[-1]


def written_out(b: Builder) -> Any:
    """Attention of single ops, as models write it."""
    heads, queries, keys, width = b.choose((2, 3)), b.choose((1, 3)), b.choose((3, 5)), b.choose((8, 4))
    dtype = _float(b)
    x = b.new_input((1, queries, heads * width), dtype)
    q = b.call("transpose", b.call("view", x, (1, queries, heads, width)), 1, 2)
    k, v = (b.new_input((1, heads, keys, width), dtype) for _ in range(2))
    scores = b.call(torch.matmul, q, b.call("transpose", k, 2, 3), growth=reach(q, k))
    scores = b.call(torch.mul, scores, b.choose((0.25, 0.125)))
    kind = b.choose(("none", "added", "filled", "where"))
    if kind != "none":
        mask = b.call(torch.ge, b.new_input((queries, keys), torch.int64), 0)
        if not bool(mask.tensor.any(-1).all()):
            raise Rejected
        if kind == "added":
            scores = b.call(torch.add, scores, b.call("to", b.call(torch.where, mask, 0.0, -1000.0), dtype))
        elif kind == "filled":
            scores = b.call("masked_fill", scores, b.call(torch.logical_not, mask), -1000.0)
        else:
            scores = b.call(torch.where, mask, scores, -1000.0)
    if b.chance(2):
        weights = b.call("to", b.call(torch.softmax, scores, -1, dtype=torch.float32, rough=True), dtype)
    else:
        weights = b.call(torch.softmax, scores, -1, rough=True)
    out = b.call(torch.matmul, weights, v, growth=reach(v) + 4)
    return b.call("reshape", b.call("transpose", out, 1, 2), (1, queries, heads * width))


def cached(b: Builder) -> Any:
    """A step with a static cache: keys and values are written at a place, one query looks at all before it."""
    groups, repeats, slots, width, dtype = b.choose((1, 2)), b.choose((1, 2)), b.choose((4, 6)), 8, _float(b)
    keys, values = (b.new_input((1, groups, slots, width), dtype) for _ in range(2))
    count = b.choose((1, 1, 2))
    at = b.call(torch.remainder, b.new_input((1,), torch.int64), slots - 1)
    places = b.call(torch.add, b.call(torch.arange, count, device="webgpu"), at)
    for cache in (keys, values):
        b.call("index_copy_", cache, 2, places, b.new_input((1, groups, count, width), dtype))
    q = b.call(torch.mul, b.new_input((1, groups * repeats, count, width), dtype), 0.25)
    seen = b.call(torch.le, b.call(torch.arange, slots, device="webgpu"), b.call("unsqueeze", places, 1))
    mask = b.call(operator.getitem, seen, (None, None))
    k, v = (b.call(torch.repeat_interleave, t, repeats, 1) if repeats > 1 else t for t in (keys, values))
    if repeats > 1 and b.chance(2):
        return b.call(F.scaled_dot_product_attention, q, keys, values, mask, enable_gqa=True, rough=True)
    return b.call(F.scaled_dot_product_attention, q, k, v, mask, rough=True)


def spatial(b: Builder) -> Any:
    """Convolutions with what moves into them, and pooling."""
    lines = b.choose((2, 2, 1))
    channels, groups = b.choose(((4, 1), (4, 2), (3, 1), (4, 4), (1, 1)))
    dtype = _float(b)
    x = b.new_input((b.choose((1, 2)), channels, *((5, 4), (6,))[lines == 1]), dtype)
    if b.chance(4):
        x = b.call(F.pad, x, b.choose(((1, 1), (0, 2), (1, 0))))
    outputs, kernel = b.choose((groups, 2 * groups)), b.choose((3, 1, 2))
    w = b.new_input((outputs, channels // groups, *[kernel] * lines), dtype)
    bias = b.new_input((outputs,), dtype) if b.chance(2) else None
    stride, padding, dilation = b.choose(((1, 1, 1), (2, 1, 1), (1, 0, 1), (1, 2, 2), (2, 0, 1)))
    convolve: Any = F.conv2d if lines == 2 else F.conv1d
    grown = (reach(w) + 1) * kernel**lines * channels
    y = b.call(convolve, x, w, bias, stride, padding, dilation, groups, growth=grown)
    kind = b.choose(("none", "relu", "scale", "residual", "pool", "mean", "average"))
    if kind == "relu":
        return b.call(F.relu, y)
    if kind == "scale":
        factor = b.new_input((outputs, *[1] * lines), dtype)
        return b.call(torch.add, b.call(torch.mul, y, factor), b.new_input((1, outputs, *[1] * lines), dtype))
    if kind == "residual":
        return b.call(torch.add, y, b.value(lambda t: t.dtype == dtype and t.shape in (y.tensor.shape, ())))
    if kind == "pool":
        return b.call(F.max_pool2d if lines == 2 else F.max_pool1d, y, 2)
    if kind == "average":
        return b.call(F.avg_pool2d if lines == 2 else F.avg_pool1d, y, 2, rough=True)
    return b.call("mean", y, (-1, -2), rough=True) if kind == "mean" else y


LAYERS: tuple[Kind, ...] = (norm, gated, projections, rotary, attention, chain, normed, written_out, cached, spatial)

__all__ = ["LAYERS"]
