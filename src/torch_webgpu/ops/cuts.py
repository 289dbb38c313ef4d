"""Along which dimensions ops can be cut whose tensors exceed the largest storage binding (see pieces.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..pieces import ADDED, Cut
from ..recipe import Tensor
from ..registry import cuttable

Args = Sequence[Any]


def _same(dims: Iterable[int], arguments: Iterable[int], results: int) -> list[Cut]:
    """Cuts along one dimension, the same of all arguments and results."""
    given = list(arguments)
    return [Cut({i: d for i in given}, (d,) * results) for d in dims]


def _but(ndim: int, dim: int) -> list[int]:
    return [d for d in range(ndim) if d != dim % max(ndim, 1)]


@cuttable("native_layer_norm", "_fused_rms_norm")
def _norm(args: Args, results: int) -> list[Cut]:
    return _same(range(args[0].ndim - len(args[1])), [0], results)


@cuttable("native_group_norm")
def _group_norm(args: Args, results: int) -> list[Cut]:
    return [Cut({0: 0}, (0,) * results, counts=(3,))]


@cuttable(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_no_update",
)
def _batch_norm(args: Args, results: int) -> list[Cut]:
    parameters = {i: 0 for i, t in enumerate(args[1:5], 1) if isinstance(t, Tensor)}
    return [Cut({0: 1} | parameters, (1, *(0,) * (results - 1)))]


@cuttable("native_batch_norm_backward")
def _batch_norm_backward(args: Args, results: int) -> list[Cut]:
    parameters = {i: 0 for i, t in enumerate(args[2:7], 2) if isinstance(t, Tensor) and t.numel}
    return [Cut({0: 1, 1: 1} | parameters, (1, 0, 0))]


@cuttable("convolution_overrideable")
def _convolution(args: Args, results: int) -> list[Cut]:
    return [Cut({0: 0}, (0,))]


@cuttable("convolution_backward_overrideable")
def _convolution_backward(args: Args, results: int) -> list[Cut]:
    return [Cut({0: 0, 1: 0}, (0, ADDED, ADDED))]


@cuttable("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d")
def _pool2d(args: Args, results: int) -> list[Cut]:
    return _same(range(args[0].ndim - 2), [0], results)


@cuttable("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d")
def _pool3d(args: Args, results: int) -> list[Cut]:
    return _same(range(args[0].ndim - 3), [0], results)


@cuttable("avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
def _average_backward(args: Args, results: int) -> list[Cut]:
    return _same(range(args[0].ndim - 2), [0, 1], results)


@cuttable("max_pool2d_with_indices_backward")
def _max_backward(args: Args, results: int) -> list[Cut]:
    return _same(range(args[0].ndim - 2), [0, 1, 7], results)


@cuttable(
    *(f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d")),
    *(f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)),
)
def _upsample(args: Args, results: int) -> list[Cut]:
    return _same((0, 1), [0], results)


@cuttable("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "_logcumsumexp", "cummax", "cummin")
def _scan(args: Args, results: int) -> list[Cut]:
    return _same(_but(args[0].ndim, args[1]), [0], results)


@cuttable("sort")
def _sort(args: Args, results: int) -> list[Cut]:
    stable = len(args) == 4  # (x, stable, dim, descending), else (x, dim, descending)
    return _same(_but(args[0].ndim, args[2 if stable else 1]), [0], results)


@cuttable("topk")
def _topk(args: Args, results: int) -> list[Cut]:
    return _same(_but(args[0].ndim, args[2]), [0], results)


@cuttable("kthvalue", "median")
def _selected(args: Args, results: int) -> list[Cut]:
    if results == 1:  # of all elements
        return []
    at = 2 if len(args) == 4 else 1  # (x, k, dim, keepdim) or (x, dim, keepdim)
    cuts = []
    for d in _but(args[0].ndim, args[at]):
        shifted = d if args[at + 1] or d < args[at] % args[0].ndim else d - 1
        cuts.append(Cut({0: d}, (shifted,) * results))
    return cuts


@cuttable("gather")
def _gather(args: Args, results: int) -> list[Cut]:
    return _same(_but(args[0].ndim, args[1]), [0, 2], results)


@cuttable("scatter", "scatter_add", "scatter_reduce")
def _scatter(args: Args, results: int) -> list[Cut]:
    x, dim, index = args[:3]
    whole = [d for d in _but(x.ndim, dim) if index.sizes[d] == x.sizes[d]]
    return _same(whole, [0, 2, 3] if isinstance(args[3], Tensor) else [0, 2], results)


@cuttable("embedding")
def _embedding(args: Args, results: int) -> list[Cut]:
    return [Cut({1: d}, (d,)) for d in range(args[1].ndim)]


@cuttable("index_select")
def _index_select(args: Args, results: int) -> list[Cut]:
    return [Cut({2: 0}, (args[1] % max(args[0].ndim, 1),))] if args[2].ndim else []


@cuttable("tril", "triu")
def _triangle(args: Args, results: int) -> list[Cut]:
    return _same(range(args[0].ndim - 2), [0], results)


@cuttable("attention")
def _attention(args: Args, results: int) -> list[Cut]:
    mask = args[3]
    cuts = []
    for d in (0, 1) if args[0].sizes[1] == args[1].sizes[1] else (0,):
        along = [0, 1, 2]
        if mask is not None and mask.ndim == 4 and mask.sizes[d] != 1:
            along.append(3)
        cuts.append(Cut({i: d for i in along}, (d,)))
    return cuts
