"""Ops composed of others, where PyTorch has kernels for its own devices only: backward of pools and pads, and a few more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..kernels.pointwise import Operand, compute, result_dtype
from ..recipe import Graph, Tensor
from ..registry import lower

_aten = torch.library.Library("aten", "IMPL")


@lower("hardshrink_backward", "softshrink_backward", out="grad_input")
def _shrink_backward(graph: Graph, grad: Tensor, x: Tensor, bound: Operand) -> Tensor:
    form = "select({0}, 0.0, {1} >= -{2} && {1} <= {2})"
    return compute(graph, form, [grad, x, bound], ["f"] * 3, "f", result_dtype(grad, x), "shrink_backward")


# ---------------------------------------------------------------------------------------------------- pools


def _to_places(spatial: int) -> Callable[..., torch.Tensor]:
    """The backward of a maximum pool: each gradient goes to the place that its maximum came from."""

    def run(grad: torch.Tensor, x: torch.Tensor, *arguments: object) -> torch.Tensor:
        indices = next(a for a in reversed(arguments) if isinstance(a, torch.Tensor))
        lead = x.shape[:-spatial]
        flat = x.new_zeros((*lead, x.shape[-spatial:].numel()))
        flat.scatter_add_(-1, indices.flatten(-spatial), grad.flatten(-spatial))
        return flat.reshape(x.shape)

    return run


def _covered(size: int, starts: Sequence[int], ends: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """The (windows, size) matrix of 1 where a window covers an element."""
    element = torch.arange(size, device=like.device)
    first, last = (torch.tensor(v, device=like.device)[:, None] for v in (starts, ends))
    return ((element >= first) & (element < last)).to(like.dtype)


def _spread_back(grad: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Windows back to elements, one dimension after the other, the last ones of ``grad``."""
    for i, matrix in enumerate(matrices):
        dim = grad.dim() - len(matrices) + i
        grad = torch.matmul(grad.movedim(dim, -1), matrix).movedim(-1, dim)
    return grad.contiguous()


def _adaptive_avg_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    matrices = []
    for size, windows in zip(x.shape[-3:], grad.shape[-3:], strict=True):
        starts = [i * size // windows for i in range(windows)]
        ends = [-(-(i + 1) * size // windows) for i in range(windows)]
        matrix = _covered(size, starts, ends, x)
        matrices.append(matrix / matrix.sum(1, keepdim=True))
    return _spread_back(grad, matrices)


def _avg_pool3d_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor:
    kernel, steps, pads = ([*v] * (3 if len(v) == 1 else 1) for v in (kernel_size, stride or kernel_size, padding))
    matrices, counts = [], []
    for size, windows, k, step, pad in zip(x.shape[-3:], grad.shape[-3:], kernel, steps, pads, strict=True):
        starts = [i * step - pad for i in range(windows)]
        ends = [min(s + k, size + pad) for s in starts]
        matrices.append(_covered(size, starts, ends, x))
        inside = [(max(s, 0), min(e, size)) for s, e in zip(starts, ends, strict=True)]
        whole = [(s, e) for s, e in zip(starts, ends, strict=True)]
        counts.append([e - s for s, e in (whole if count_include_pad else inside)])
    if divisor_override is not None:
        grad = grad / divisor_override
    else:
        a, b, c = (torch.tensor(n, dtype=grad.dtype, device=grad.device) for n in counts)
        grad = grad / (a[:, None, None] * b[:, None] * c)
    return _spread_back(grad, matrices)


# ---------------------------------------------------------------------------------------------------- pads


def _replication_pad_backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    """The sum of the gradients of each element's copies."""
    for i in range(len(padding) // 2):
        dim = x.dim() - 1 - i
        low, size = padding[2 * i], x.shape[dim]
        source = (torch.arange(grad.shape[dim], device=grad.device) - low).clamp(0, size - 1)
        shape = [size if d == dim else n for d, n in enumerate(grad.shape)]
        grad = grad.new_zeros(shape).index_add_(dim, source, grad)
    return grad


# ---------------------------------------------------------------------------------------------------- others


def _embedding_renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    if indices.numel():
        places = indices.reshape(-1)
        rows = weight[places]
        norms = torch.linalg.vector_norm(rows, norm_type, dim=1, keepdim=True, dtype=torch.float32)
        scale = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0).to(rows.dtype)
        weight.index_copy_(0, places, rows * scale)
    return weight


def _rrelu_with_noise(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    slopes = torch.empty_like(x).uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(x <= 0, slopes, 1.0))
    return x * noise


def _rrelu_with_noise_in_place(x: torch.Tensor, *args: torch.Tensor, **kwargs: torch.Generator) -> torch.Tensor:
    return x.copy_(_rrelu_with_noise(x, *args, **kwargs))  # type: ignore[arg-type]


def _zeros(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Zeros that autograd adds to nothing; PyTorch's own devices have them without memory."""
    return torch.zeros(size, dtype=dtype, device=device or "webgpu")


for _name, _function in {
    "_efficientzerotensor": _zeros,
    "adaptive_max_pool2d_backward": _to_places(2),
    "adaptive_max_pool3d_backward": _to_places(3),
    "max_pool3d_with_indices_backward": _to_places(3),
    "fractional_max_pool2d_backward": _to_places(2),
    "fractional_max_pool3d_backward": _to_places(3),
    "_adaptive_avg_pool3d_backward": _adaptive_avg_backward,
    "avg_pool3d_backward": _avg_pool3d_backward,
    "replication_pad1d_backward": _replication_pad_backward,
    "replication_pad2d_backward": _replication_pad_backward,
    "replication_pad3d_backward": _replication_pad_backward,
    "embedding_renorm_": _embedding_renorm,
    "rrelu_with_noise": _rrelu_with_noise,
    "rrelu_with_noise_": _rrelu_with_noise_in_place,
}.items():
    _aten.impl(_name, _function, "PrivateUse1")
