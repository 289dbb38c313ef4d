"""Distances between rows, composed of elementwise ops and sums; and their backward."""

from __future__ import annotations

import math

import torch

_aten = torch.library.Library("aten", "IMPL")
_CHUNK = 16 << 20  # elements of differences held at once


def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: float) -> torch.Tensor:
    """Distances between the rows of (…, P, M) and (…, R, M), batches already broadcast by PyTorch."""
    rows, columns, width = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    batch = math.prod(x1.shape[:-2])
    step = max(1, _CHUNK // max(1, batch * columns * width))
    parts = []
    for i in range(0, rows, step):
        difference = x1[..., i : i + step, None, :] - x2[..., None, :, :]
        if p == 0:  # how many differ; unlike a norm's, PyTorch's count passes NaN on
            parts.append(difference.abs().ceil().clamp(max=1).sum(-1))
        else:
            parts.append(torch.linalg.vector_norm(difference, ord=p, dim=-1))
    return torch.cat(parts, -2) if parts else x1.new_empty((*x1.shape[:-2], rows, columns))


def _cdist_forward(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    if not x1.is_floating_point() or not x2.is_floating_point():
        raise RuntimeError(f"cdist only supports floating-point dtypes, got {x1.dtype} and {x2.dtype}")
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}")
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x1, x2 = x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:])
    if x1.shape[-1] == 0:
        return x1.new_zeros((*batch, x1.shape[-2], x2.shape[-2]))
    return _cdist(x1, x2, p)


def _slopes(difference: torch.Tensor, distance: torch.Tensor, p: float) -> torch.Tensor:
    """The derivatives of a norm by the differences; 0 where the distance is 0."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if math.isinf(p):
        return difference.sign() * (difference.abs() == distance)
    share = difference if p == 2 else difference.sign() * difference.abs() ** (p - 1)
    return torch.where((distance == 0) | (difference == 0), 0.0, share / distance ** (p - 1))


def _cdist_backward(grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, cdist: torch.Tensor) -> torch.Tensor:
    """The gradient of ``x1``, (…, P, M)."""
    batch = cdist.shape[:-2]
    x1, x2 = x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:])
    columns, width = x2.shape[-2], x1.shape[-1]
    step = max(1, _CHUNK // max(1, math.prod(batch) * columns * width))
    parts = []
    for i in range(0, x1.shape[-2], step):
        rows = slice(i, i + step)
        difference = x1[..., rows, None, :] - x2[..., None, :, :]
        slopes = _slopes(difference, cdist[..., rows, :, None], p)
        parts.append((grad[..., rows, :, None] * slopes).sum(-2))
    return torch.cat(parts, -2) if parts else torch.zeros_like(x1)


def _pairs(n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows i < j in the order of pdist."""
    places = torch.triu_indices(n, n, 1, device=device)
    return places[0], places[1]


def _pdist_forward(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    i, j = _pairs(x.shape[0], x.device)
    if i.numel() == 0 or x.shape[1] == 0:
        return x.new_zeros(i.numel())
    return _cdist(x, x, p)[i, j]


def _pdist_backward(grad: torch.Tensor, x: torch.Tensor, p: float, pdist: torch.Tensor) -> torch.Tensor:
    if grad.numel() == 0 or x.numel() == 0:
        return torch.zeros_like(x)
    i, j = _pairs(x.shape[0], x.device)
    difference = x.index_select(0, i) - x.index_select(0, j)
    each = grad[:, None] * _slopes(difference, pdist[:, None], p)
    return torch.zeros_like(x).index_add_(0, i, each).index_add_(0, j, -each)


for _name, _function in {
    "_cdist_forward": _cdist_forward,
    "_cdist_backward": _cdist_backward,
    "_pdist_forward": _pdist_forward,
    "_pdist_backward": _pdist_backward,
}.items():
    _aten.impl(_name, _function, "PrivateUse1")
