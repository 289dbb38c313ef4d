"""Rarer ops for random programs (``graphs.Builder``): masks, pictures, norms, attention, ties, scans, duplicates."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from graph_ops import Kind, is_float, reach, repeated_along
from graphs import FLOATS, Builder, Rejected, Value, magnitude


def _float(b: Builder) -> torch.dtype:
    return b.choose(FLOATS)  # type: ignore[no-any-return]


def _whole(b: Builder, x: Value) -> Value:
    """The tensor, if its numbers are exact."""
    if not b.exact(x):
        raise Rejected
    return x


def _mask(b: Builder, shape: tuple[int, ...]) -> Value:
    """A mask of that shape, one there is or a new one."""
    if b.chance(2):
        return b.value(lambda t: t.dtype is torch.bool and t.shape == shape)
    return b.call(b.choose((torch.ge, torch.lt)), b.new_input(shape, torch.int64), b.integer(-3, 3))  # type: ignore[no-any-return]


def _loose(b: Builder, result: Any, factor: float) -> Any:
    """A result of many roundings, or one that small differences of its operands move far."""
    if result is not None and not b.exact(result):
        b.errors[result.storage] *= factor
    return result


def masked(b: Builder) -> Any:
    """Reads and writes by masks; sizes that depend on numbers."""
    x = b.value(lambda t: t.ndim > 0)
    kind = b.choose(("read", "select", "nonzero", "put", "scatter", "rows", "where"))
    if kind == "nonzero":
        return b.call(torch.nonzero, _whole(b, x))
    if kind == "rows":
        rows = _mask(b, (x.tensor.shape[0],))
        return b.call(operator.getitem, x, (rows, Ellipsis))
    mask = _mask(b, tuple(x.tensor.shape))
    if kind == "read":
        return b.call(operator.getitem, x, mask)
    if kind == "select":
        return b.call(torch.masked_select, x, mask)
    if kind == "where":
        return b.call(torch.where, mask, x, b.value())
    source = b.new_input((int(mask.tensor.sum()) + (kind == "scatter"),), x.tensor.dtype)
    if kind == "scatter":
        return b.call(torch.masked_scatter, x, mask, source)
    return b.call("index_put_", x, (mask,), source) and None


def pooled(b: Builder) -> Any:
    """Windows with gaps, padding, and ends that do not fit."""
    lines = b.choose((2, 1, 2, 3))
    x = b.new_input((b.choose((1, 2)), b.choose((1, 3)), *(b.choose((5, 4, 7)) for _ in range(lines))), _float(b))
    kind = b.choose(("max", "average", "adaptive average", "adaptive max", "max indices", "lp"))
    if kind.startswith("adaptive"):
        sizes = tuple(b.choose((1, 2, 3, 5)) for _ in range(lines))
        name = f"adaptive_{'max' if kind.endswith('max') else 'avg'}_pool{lines}d"
        return b.call(getattr(F, name), x, sizes, rough=kind.endswith("average"))
    window, step = b.choose((2, 3, 1)), b.choose((1, 2, 3))
    padding, ceil = b.integer(0, window // 2), b.chance(2)
    if kind == "average":
        function = getattr(F, f"avg_pool{lines}d")
        return b.call(function, x, window, step, padding, ceil, b.chance(2), rough=True)
    if kind == "lp" and lines < 3:
        x = b.call(torch.abs, x)
        return b.call(getattr(F, f"lp_pool{lines}d"), b.call(torch.add, x, 1), 2, window, step, ceil, rough=True)
    function = getattr(F, f"max_pool{lines}d")
    return b.call(function, x, window, step, padding, b.choose((1, 2)), ceil)


def resized(b: Builder) -> Any:
    """Pictures made larger and smaller."""
    lines = b.choose((2, 1, 2))
    x = b.new_input((b.choose((1, 2)), b.choose((1, 3)), *(b.choose((3, 4, 6, 1)) for _ in range(lines))), _float(b))
    modes = (
        ("nearest", "linear", "area", "nearest-exact")
        if lines == 1
        else ("nearest", "bilinear", "bicubic", "area", "nearest-exact")
    )
    mode = b.choose(modes)
    kwargs: dict[str, Any] = {"mode": mode}
    if mode in ("linear", "bilinear", "bicubic"):
        kwargs["align_corners"] = b.chance(2)
    if b.chance(2):
        kwargs["scale_factor"] = b.choose((2, 0.5, 1.5, 3))
    else:
        kwargs["size"] = tuple(b.choose((2, 5, 1, 8)) for _ in range(lines))
    return _loose(b, b.call(F.interpolate, x, rough=not mode.startswith("nearest"), **kwargs), 16.0)


def shuffled(b: Builder) -> Any:
    """Pixels into channels and back, patches, grids."""
    dtype = _float(b)
    kind = b.choose(("shuffle", "unshuffle", "unfold", "fold", "channels", "sample"))
    if kind == "shuffle":
        return b.call(F.pixel_shuffle, b.new_input((1, 8, 2, 3), dtype), 2)
    if kind == "unshuffle":
        return b.call(F.pixel_unshuffle, b.new_input((2, 1, 4, 6), dtype), 2)
    if kind == "unfold":
        return b.call(
            F.unfold,
            b.new_input((1, 2, 5, 4), dtype),
            b.choose((2, 3)),
            b.choose((1, 2)),
            b.choose((0, 1)),
            b.choose((1, 2)),
        )
    if kind == "fold":
        return b.call(F.fold, b.new_input((1, 8, 6), dtype), (3, 4), 2, growth=8.0)
    if kind == "channels":
        return b.call(F.channel_shuffle, b.new_input((1, 6, 2, 3), dtype), b.choose((2, 3)))
    grid = b.call(torch.mul, b.new_input((1, 3, 2, 2), torch.float32), b.choose((0.3, 0.5)))
    x = b.new_input((1, 2, 4, 5), torch.float32)
    kwargs = {"padding_mode": b.choose(("zeros", "border", "reflection")), "align_corners": b.chance(2)}
    return b.call(F.grid_sample, x, grid, rough=True, growth=40.0, **kwargs)


def convolved(b: Builder) -> Any:
    """Convolutions in one to three dimensions, there and back."""
    lines, dtype = b.choose((2, 1, 3)), _float(b)
    groups = b.choose((1, 2))
    inner, outer = groups * b.choose((1, 2)), groups * b.choose((1, 3))
    kernel = tuple(b.choose((2, 1, 3)) for _ in range(lines))
    x = b.new_input((b.choose((1, 2)), inner, *(b.choose((4, 5, 3)) for _ in range(lines))), dtype)
    bias = b.new_input((outer,), dtype) if b.chance(2) else None
    stride, padding, dilation = (tuple(b.choose(each) for _ in range(lines)) for each in ((1, 2), (0, 1), (1, 2)))
    grown = 10.0 * inner * math.prod(kernel)
    if b.chance(2):
        w = b.new_input((outer, inner // groups, *kernel), dtype)
        return b.call(getattr(F, f"conv{lines}d"), x, w, bias, stride, padding, dilation, groups, growth=grown)
    w = b.new_input((inner, outer // groups, *kernel), dtype)
    more = tuple(b.integer(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    function = getattr(F, f"conv_transpose{lines}d")
    return b.call(function, x, w, bias, stride, padding, more, groups, dilation, growth=grown)


def normalised(b: Builder) -> Any:
    """Norms over batches, groups, instances and several dimensions."""
    dtype, channels = _float(b), b.choose((4, 2))
    x = b.new_input((b.choose((2, 3)), channels, *b.choose(((3, 3), (5,), (2, 3, 2)))), dtype)
    gain, bias = (b.new_input((channels,), dtype) if b.chance(2) else None for _ in range(2))
    kind = b.choose(("batch", "group", "instance", "layer", "training", "local", "normalize"))
    if kind == "group":
        return b.call(F.group_norm, x, b.choose((1, 2)), gain, bias, 0.1, rough=True)
    if kind == "instance":
        return b.call(F.instance_norm, x, None, None, gain, bias, True, 0.1, 0.1, rough=True)
    if kind == "layer":
        shape = tuple(x.tensor.shape[-b.choose((1, 2)) :])
        return b.call(F.layer_norm, x, shape, b.new_input(shape, dtype), None, 0.1, rough=True)
    if kind == "local":
        return b.call(F.local_response_norm, x, 3, 0.5, rough=True)
    if kind == "normalize":
        return b.call(F.normalize, b.call(torch.add, x, 4), b.choose((2.0, 1.0)), 1, rough=True)
    mean, variance = b.new_input((channels,), dtype), b.call(torch.abs, b.new_input((channels,), dtype))
    variance = b.call(torch.add, variance, 1)
    result = b.call(F.batch_norm, x, mean, variance, gain, bias, kind == "training", 0.5, 0.1, rough=True)
    if kind == "training":  # writes its statistics, which the schema does not tell
        for statistics in (mean, variance):
            b.errors[statistics.storage] = 16 * torch.finfo(dtype).eps * max(magnitude(x.tensor) ** 2, 1.0)
    return _loose(b, result, 4.0)


def attended(b: Builder) -> Any:
    """Scaled dot products with masks of all shapes, rows that see nothing among them."""
    dtype, heads = _float(b), b.choose((2, 1))
    queries, keys, width, values = b.choose((3, 1, 5)), b.choose((4, 1, 7)), b.choose((4, 8, 3)), b.choose((4, 2))
    batch = b.choose(((1, heads), (2, heads), (heads,)))
    q, k, v = (b.new_input((*batch, n, w), dtype) for n, w in ((queries, width), (keys, width), (keys, values)))
    q = b.call(torch.mul, q, 0.25)
    kwargs: dict[str, Any] = {"scale": b.choose((None, 0.5))}
    kind = b.choose(("bool", "float", "causal", "none", "row", "all"))
    mask = None
    if kind == "causal":
        kwargs["is_causal"] = True
    elif kind != "none":
        shape = b.choose(((queries, keys), (1, keys), (*[1] * len(batch), queries, keys), (*batch, queries, keys)))
        mask = b.call(torch.ge, b.new_input(shape, torch.int64), b.integer(-2, 2))
        if kind == "row":
            rows = b.call(torch.ge, b.new_input((shape[-2], 1), torch.int64), 0)
            mask = b.call(torch.logical_and, mask, rows)
        elif kind == "all":
            mask = b.call(torch.zeros_like, mask)
        elif kind == "float":
            mask = (
                b.call("to", b.call(torch.where, mask, b.choose((0.0, 0.5)), -math.inf), dtype)
                if b.chance(2)
                else b.new_input(shape, dtype)
            )
    return b.call(F.scaled_dot_product_attention, q, k, v, mask, rough=True, **kwargs)


def ties(b: Builder) -> Any:
    """Orders among equal numbers, where PyTorch defines them."""
    x = _whole(b, b.value(lambda t: t.ndim > 0 and t.dtype is not torch.bool and t.numel() > 0))
    dim, most = b.dim(x.tensor), b.chance(2)
    kind = b.choose(
        ("sort", "topk", "kthvalue", "unique", "searchsorted", "msort", "isin", "median", "argsort", "bucketize")
    )
    if kind == "sort":
        return b.call(torch.sort, x, dim=dim, descending=most, stable=True)
    if kind == "argsort":
        return b.call(torch.argsort, x, dim=dim, descending=most, stable=True)
    if kind == "msort":
        return b.call(torch.msort, x)
    if kind == "isin":
        return b.call(torch.isin, x, b.value(lambda t: t.dtype == x.tensor.dtype), invert=most)
    if kind == "unique":
        return b.call(torch.unique, x, True, most, most)
    if kind in ("searchsorted", "bucketize"):
        line = b.call(torch.msort, b.new_input((b.choose((4, 1, 7)),), x.tensor.dtype))
        if kind == "bucketize":
            return b.call(torch.bucketize, x, line, right=most)
        return b.call(torch.searchsorted, line, x, right=most)
    x = b.call("contiguous", x)  # of an expanded one the CPU reads what lies beside it
    if kind == "topk":
        found = b.call(torch.topk, x, b.integer(0, x.tensor.shape[dim]), dim, most)
    elif kind == "kthvalue":
        found = b.call(torch.kthvalue, x, b.integer(1, x.tensor.shape[dim]), dim, most)
    else:
        found = b.call(torch.median, x, dim, most)
    if repeated_along(x.tensor, dim):
        b.values.remove(found[1])  # of equal elements any may be named
    return found[0]


def scanned(b: Builder) -> Any:
    """Running sums and products, differences, in other dtypes."""
    x = b.value(lambda t: t.ndim > 0 and magnitude(t) < 8)
    dim, grown = b.dim(x.tensor), float(max(x.tensor.numel(), 1))
    kind = b.choose(("cumsum", "cumprod", "logcumsumexp", "cummin", "trapezoid", "diff", "cumsum dtype"))
    if kind == "cumsum":
        return b.call(torch.cumsum, x, dim, growth=grown)
    if kind == "cumsum dtype":
        return b.call(
            torch.cumsum, _whole(b, x), dim, dtype=b.choose((torch.float32, torch.int64, torch.int32)), growth=grown
        )
    if kind == "cumprod":
        return b.call(torch.cumprod, _whole(b, x), dim)
    if kind == "logcumsumexp":
        return b.call(torch.logcumsumexp, x, dim, rough=True)
    if kind == "cummin":
        values = b.call(torch.cummin, _whole(b, x), dim)
        b.values.remove(values[1])
        return values[0]
    if kind == "trapezoid":
        return b.call(torch.trapezoid, x, dim=dim, growth=grown)
    return b.call(torch.diff, x, n=b.choose((1, 2)), dim=dim, growth=4.0)


def duplicates(b: Builder) -> Any:
    """Several sources for one place, where their order does not matter."""
    x = b.value(lambda t: t.ndim > 0 and t.numel() > 0 and t.dtype is not torch.bool)
    t, dim = x.tensor, b.dim(x.tensor)
    kind = b.choose(
        ("index_put", "pairs", "index_reduce", "scatter_reduce", "scatter_add_", "bincount", "put_", "index_add")
    )
    if kind == "bincount":
        return b.call(
            torch.bincount,
            b.call(torch.remainder, b.new_input((b.choose((5, 1, 9)),), torch.int64), 4),
            minlength=b.choose((0, 6)),
        )
    places = b.call(
        torch.remainder, b.new_input((b.integer(1, 5),), torch.int64), t.shape[0] if "put" in kind else t.shape[dim]
    )
    count = places.tensor.numel()
    if kind == "index_put":
        return b.call("index_put_", x, (places,), b.new_input((count, *t.shape[1:]), t.dtype), True, growth=8.0) and None
    if kind == "pairs":
        if t.ndim < 2:
            raise Rejected
        rows, columns = (b.call(torch.remainder, b.new_input((4,), torch.int64), n) for n in t.shape[:2])
        return b.call(torch.index_put, x, (rows, columns), b.new_input((4, *t.shape[2:]), t.dtype), True, growth=8.0)
    if kind == "put_":
        line = b.call(torch.remainder, b.new_input((3,), torch.int64), t.numel())
        return b.call("put_", x, line, b.new_input((3,), t.dtype), accumulate=True, growth=8.0) and None
    shape = list(t.shape)
    shape[dim] = count
    if kind in ("index_reduce", "index_add"):
        source = b.new_input(tuple(shape), t.dtype)
        if kind == "index_add":
            return b.call(torch.index_add, x, dim, places, source, alpha=b.choose((1, 2)), growth=8.0)
        name = b.choose(("amax", "amin", "prod", "mean"))
        return b.call(
            torch.index_reduce, x, dim, places, source, name, include_self=b.chance(2), rough=name == "mean", growth=8.0
        )
    where = b.call(torch.remainder, b.new_input(tuple(shape), torch.int64), t.shape[dim])
    source = b.new_input(tuple(shape), t.dtype)
    if kind == "scatter_add_":
        return b.call("scatter_add_", x, dim, where, source, growth=8.0) and None
    name = b.choose(("sum", "amax", "amin", "prod", "mean"))
    rough = name in ("mean", "prod")
    return b.call(torch.scatter_reduce, x, dim, where, source, name, include_self=b.chance(2), rough=rough, growth=8.0)


def matrices(b: Builder) -> Any:
    """Products of matrices in other words, and their parts."""
    dtype = _float(b)
    kind = b.choose(
        ("einsum", "baddbmm", "cdist", "kron", "tri", "diag", "addr", "cross", "tensordot", "mv", "trace", "bilinear")
    )
    if kind in ("tri", "diag", "trace"):
        x = b.value(lambda t: t.ndim >= 2)
        if kind == "tri":
            return b.call(b.choose((torch.tril, torch.triu)), x, b.integer(-2, 2))
        if kind == "diag":
            return b.call(torch.diag_embed, x, b.integer(-1, 1)) if x.tensor.numel() < 60 else None
        return b.call(torch.trace, x, growth=8.0) if x.tensor.ndim == 2 else None
    x, y = b.new_input((2, 3, 4), dtype), b.new_input((2, 4, 5), dtype)
    if kind == "einsum":
        what = b.choose(("bij,bjk->bik", "bij,bjk->ik", "bij,bjk->kbi", "bij,cjk->bcik"))
        return b.call(torch.einsum, what, x, y, growth=2 * reach(x, y))
    if kind == "baddbmm":
        z = b.new_input(b.choose(((2, 3, 5), (5,), (3, 1))), dtype)
        return b.call(torch.baddbmm, z, x, y, beta=b.choose((1, 0, 2)), alpha=b.choose((1, -1)), growth=reach(x, y) + 2)
    if kind == "tensordot":
        return b.call(torch.tensordot, x, y, ([0, 2], [0, 1]), growth=2 * reach(x, y))
    rows = b.call(torch.select, x, 0, 1)
    if kind == "cdist":
        if dtype is not torch.float32:
            raise Rejected
        return b.call(torch.cdist, rows, b.new_input((2, 4), dtype), b.choose((1.0, math.inf)), rough=True)
    if kind == "kron":
        return b.call(torch.kron, rows, b.new_input((2, 2), dtype))
    if kind == "mv":
        return b.call(torch.mv, rows, b.new_input((4,), dtype), growth=reach(x))
    if kind == "addr":
        return b.call(torch.addr, rows, b.new_input((3,), dtype), b.new_input((4,), dtype), growth=reach(x))
    if kind == "bilinear":
        return b.call(F.bilinear, rows, b.new_input((3, 2), dtype), b.new_input((2, 4, 2), dtype), growth=100 * reach(x))
    return b.call(torch.linalg.cross, b.new_input((2, 3), dtype), b.new_input((2, 3), dtype), growth=2 * reach(x))


def bits(b: Builder) -> Any:
    """Whole numbers: shifts, bits, divisions of both signs, other dtypes beside each other."""
    x, y = (_whole(b, b.value(lambda t: not is_float(t))) for _ in range(2))
    kind = b.choose(
        ("and", "xor", "not", "left", "right", "floor", "trunc", "copysign", "heaviside", "gcd", "maximum", "mean")
    )
    if kind in ("left", "right"):
        if x.tensor.dtype is torch.bool:
            raise Rejected
        return b.call(torch.bitwise_left_shift if kind == "left" else torch.bitwise_right_shift, x, b.integer(0, 5))
    if kind in ("floor", "trunc"):
        if y.tensor.dtype is torch.bool or not bool((y.tensor != 0).all()):
            raise Rejected
        return b.call(torch.div, x, y, rounding_mode=kind)
    if kind == "not":
        return b.call(torch.bitwise_not, x)
    if kind == "mean":
        return b.call(torch.mean, x, dtype=torch.float32, rough=True)
    named = {"and": "bitwise_and", "xor": "bitwise_xor"}
    return b.call(getattr(torch, named.get(kind) or kind), x, y)


def losses(b: Builder) -> Any:
    """Losses, with targets that are left out."""
    dtype = b.choose((torch.float32, torch.float32, torch.bfloat16))
    kind = b.choose(("cross entropy", "mse", "smooth", "huber", "bce", "kl", "nll", "l1", "cosine"))
    how = b.choose(("mean", "sum", "none"))
    x = b.new_input((4, 5), dtype)
    if kind in ("cross entropy", "nll"):
        target = b.call(torch.remainder, b.new_input((4,), torch.int64), 5)
        x = x if kind == "cross entropy" else b.call(torch.log_softmax, x, -1, rough=True)
        function: Any = F.cross_entropy if kind == "cross entropy" else F.nll_loss
        kwargs: dict[str, Any] = {"label_smoothing": b.choose((0.0, 0.25))} if kind == "cross entropy" else {}
        return b.call(function, x, target, ignore_index=b.choose((-100, 0)), reduction=how, rough=True, growth=8.0, **kwargs)
    y = b.new_input((4, 5), dtype)
    if kind == "bce":
        y = b.call("to", b.call(torch.ge, y, 0), dtype)
        return b.call(F.binary_cross_entropy_with_logits, x, y, reduction=how, rough=True)
    if kind == "kl":
        x, y = (b.call(torch.log_softmax, t, -1, rough=True) for t in (x, y))
        return b.call(F.kl_div, x, y, reduction="sum", log_target=True, rough=True, growth=40.0)
    if kind == "cosine":
        return b.call(F.cosine_similarity, b.call(torch.add, x, 4), b.call(torch.add, y, 4), rough=True)
    names = {"mse": F.mse_loss, "smooth": F.smooth_l1_loss, "huber": F.huber_loss, "l1": F.l1_loss}
    return b.call(names[kind], x, y, reduction=how, rough=True)


#: What only eager PyTorch runs: sizes depend on numbers.
EAGER: tuple[Kind, ...] = (masked, ties, duplicates)
RARE: tuple[Kind, ...] = (
    pooled, resized, shuffled, convolved, normalised, attended, scanned, matrices, bits, losses,
)  # fmt: skip

__all__ = ["EAGER", "RARE"]
