"""Ops over sorts and scatters that read a count or a range back, so they wait for the device, as they do on CUDA."""

from __future__ import annotations

import math

import torch

from ..decompositions import writing

_aten = torch.library.Library("aten", "IMPL")


def _groups(
    line: torch.Tensor, order: torch.Tensor | None, return_inverse: bool, return_counts: bool, shape: torch.Size
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs of equal values of a line: one value each, the run of every element (``order``: its place), run lengths."""
    places = torch.empty(0, dtype=torch.int64, device=line.device)
    n = line.numel()
    if n == 0:
        return line.clone(), places.reshape(shape) if return_inverse else places, places.clone()
    starts = torch.ones(n, dtype=torch.bool, device=line.device)
    starts[1:] = line[1:] != line[:-1]
    run = starts.cumsum(0) - 1
    count = int(run[-1]) + 1
    values = line.new_empty(count).scatter_(0, run, line)  # what meets at one place is equal
    inverse = places
    if return_inverse:
        inverse = run if order is None else torch.empty_like(run).scatter_(0, order, run)
        inverse = inverse.reshape(shape)
    counts = places.new_zeros(count).scatter_add_(0, run, torch.ones_like(run)) if return_counts else places.clone()
    return values, inverse, counts


def _unique2(
    self: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    line, order = self.reshape(-1).sort()
    return _groups(line, order, return_inverse, return_counts, self.shape)


def _unique(self: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return _unique2(self, sorted, return_inverse)[:2]


def _unique_consecutive(
    self: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if dim is not None and self.dim() != 1:
        return _row_groups(self, dim, False, return_inverse, return_counts)
    return _groups(self.reshape(-1), None, return_inverse, return_counts, self.shape)


def _unique_dim(
    self: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _row_groups(self, dim, True, return_inverse, return_counts)


def _unique_dim_consecutive(
    self: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _row_groups(self, dim, False, return_inverse, return_counts)


def _row_groups(
    self: torch.Tensor, dim: int, sort: bool, return_inverse: bool, return_counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs of equal slices along a dimension, sorted or as they are: one slice each, the run of each slice, run lengths."""
    zeros = sum(size == 0 for size in self.shape)
    n = self.shape[dim]
    if zeros and not (n == 0 and zeros == 1):
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    places = torch.empty(0, dtype=torch.int64, device=self.device)
    if n == 0:
        return self.clone(), places, places.clone()
    rows = self.movedim(dim, 0).reshape(n, -1)
    order = torch.arange(n, device=self.device)
    if sort:  # by the last element first; stable sorts keep the order of the earlier ones
        for column in reversed(rows.unbind(1)):
            order = order.index_select(0, column.index_select(0, order).sort(stable=True).indices)
        rows = rows.index_select(0, order)
    starts = torch.ones(n, dtype=torch.bool, device=self.device)
    starts[1:] = (rows[1:] != rows[:-1]).any(1)
    run = starts.cumsum(0) - 1
    first = starts.nonzero().squeeze(1)
    values = self.index_select(dim, order.index_select(0, first))
    inverse = torch.empty_like(run).scatter_(0, order, run) if return_inverse else places
    counts = places.clone()
    if return_counts:
        counts = torch.zeros_like(first).scatter_add_(0, run, torch.ones_like(run))
    return values, inverse, counts


def _bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if self.dim() != 1 or self.is_floating_point() or self.dtype is torch.bool:
        raise RuntimeError(f"bincount only supports 1-d non-negative integral inputs, got {self.dtype}{list(self.shape)}")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError(f"weights should be 1-d and have the same length as input: {self.shape} and {weights.shape}")
    dtype = torch.int64 if weights is None else torch.float32
    size = minlength
    if self.numel():
        low, high = torch.stack(self.aminmax()).tolist()
        if low < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(size, high + 1)
    out = torch.zeros(size, dtype=dtype, device=self.device)
    added = torch.ones(self.shape, dtype=dtype, device=self.device) if weights is None else weights.to(dtype)
    return out.index_add_(0, self.long(), added)


def _histc(self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    low, high = float(min), float(max)
    if low == high and self.numel():
        low, high = (float(v) for v in torch.stack(self.aminmax()).tolist())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("max must be larger than min")
    x = self.reshape(-1)
    inside = (x >= low) & (x <= high)
    place = ((torch.where(inside, x, low) - low) * bins / (high - low)).to(torch.int64).clamp(max=bins - 1)
    counts = torch.zeros(bins, dtype=torch.int64, device=self.device).index_add_(0, place, inside.to(torch.int64))
    return counts.to(self.dtype)


def _mode(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest of the most frequent values of each row and the last place it is at, as on the CPU."""
    if self.dim() == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64, device=self.device)
    line, order = self.movedim(dim, -1).sort(dim=-1, stable=True)
    n = line.shape[-1]
    if n == 0:
        raise IndexError(f"mode(): Expected reduction dim {dim} to have non-zero size.")
    place = torch.arange(n, dtype=torch.int32, device=self.device).expand(line.shape)
    starts = torch.ones(line.shape, dtype=torch.bool, device=self.device)
    starts[..., 1:] = line[..., 1:] != line[..., :-1]
    length = place - torch.where(starts, place, 0).cummax(-1).values
    at = length.argmax(-1, keepdim=True)
    if self.is_floating_point():  # NaN, never equal to itself, comes first among runs of one
        nan = line[..., -1:].isnan() & (length.amax(-1, keepdim=True) == 0)
        at = torch.where(nan, n - 1, at)
    results = [t.gather(-1, at).movedim(-1, dim) for t in (line, order)]
    return tuple(t if keepdim else t.squeeze(dim) for t in results)  # type: ignore[return-value]


def _nanmedian_dim(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    if not self.is_floating_point():
        return self.median(dim, keepdim)
    if self.dim() == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64, device=self.device)
    if self.shape[dim] == 0:
        raise IndexError(f"nanmedian(): Expected reduction dim {dim} to have non-zero size.")
    values, places = self.sort(dim=dim, stable=True)  # NaN last
    at = (((~self.isnan()).sum(dim, keepdim=True) - 1) // 2).clamp(min=0)
    results = [t.gather(dim, at) for t in (values, places)]
    return tuple(t if keepdim else t.squeeze(dim) for t in results)  # type: ignore[return-value]


def _nanmedian(self: torch.Tensor) -> torch.Tensor:
    return _nanmedian_dim(self.reshape(-1), 0)[0] if self.numel() else self.median()


for _name, _function in {
    "_unique2": _unique2,
    "_unique": _unique,
    "unique_consecutive": _unique_consecutive,
    "bincount": _bincount,
    "histc": _histc,
    "mode": _mode,
    "mode.values": writing("mode", _mode, ["values", "indices"]),
    "unique_dim": _unique_dim,
    "unique_dim_consecutive": _unique_dim_consecutive,
    "nanmedian.dim": _nanmedian_dim,
    "nanmedian": _nanmedian,
}.items():
    _aten.impl(_name, _function, "PrivateUse1")
