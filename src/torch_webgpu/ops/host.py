"""Ops whose result shape depends on data: the host must read a count, so they wait for the device, as they do on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_package = torch.library.Library("webgpu", "FRAGMENT")
_aten = torch.library.Library("aten", "IMPL")

_package.define("index_on_host(Tensor self, Tensor?[] indices) -> Tensor")
_package.define("index_put_on_host(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor")
_package.define("index_put_on_host_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor(a!)")
_package.define(
    "index_put_impl_on_host_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False, bool unsafe=False)"
    " -> Tensor(a!)"
)


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    """Numbers the non-zero elements, waits for their count, and brings each one's place to its number."""
    n = x.numel()
    if n == 0:
        return torch.empty((0, x.dim()), dtype=torch.int64, device=x.device)
    found = (x != 0).reshape(-1)
    number = found.cumsum(0)
    return _places(x, found, number, int(number[-1]))


def _places(x: torch.Tensor, found: torch.Tensor, number: torch.Tensor, count: int) -> torch.Tensor:
    """(count, dimensions): the coordinates of the first ``count`` elements found; ``number`` counts them from 1."""
    kept = found & (number <= count)
    every = torch.arange(x.numel(), device=x.device)
    spare = torch.where(kept, number - 1, count)  # the others meet in one place more
    line = torch.zeros(count + 1, dtype=torch.int64, device=x.device).scatter_(0, spare, every)[:count]
    columns = []
    for size in reversed(x.shape):
        columns.append(line % size)
        line = line // size
    return torch.stack(columns[::-1], 1) if columns else line.new_empty((count, 0))


def _nonzero_static(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """``nonzero`` of a size that is known: no wait. Places beyond those found are ``fill_value``."""
    if size < 0:
        raise RuntimeError(f"nonzero_static: 'size' must be an non-negative integer, got {size}")
    if x.numel() == 0 or size == 0 or x.dim() == 0:
        filled = torch.full((size, x.dim()), fill_value, dtype=torch.int64, device=x.device)
        return filled
    found = (x != 0).reshape(-1)
    number = found.cumsum(0)
    rank = torch.arange(size, device=x.device)[:, None]
    return torch.where(rank < number[-1], _places(x, found, number, size), fill_value)


def _as_positions(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Masks become index tensors; everything is moved to the device."""
    out: list[torch.Tensor | None] = []
    for t in indices:
        if t is not None and t.dtype in (torch.bool, torch.uint8):
            at = len(out)
            if t.shape != x.shape[at : at + t.dim()]:
                raise IndexError(
                    f"The shape of the mask {list(t.shape)} at index {at} does not match the shape of the indexed tensor "
                    f"{list(x.shape)}"
                )
            out.extend(torch.nonzero(t).to(x.device).unbind(1))
        else:
            out.append(t if t is None else t.to(x.device))
    return out


def _index(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    return torch.ops.aten.index.Tensor(self, _as_positions(self, indices))


def _index_put(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    return torch.ops.aten.index_put(self, _as_positions(self, indices), values.to(self.device), accumulate)


def _index_put_(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    torch.ops.aten.index_put_(self, _as_positions(self, indices), values.to(self.device), accumulate)
    return self


def _masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, but got {mask.dtype}")
    x, m = torch.broadcast_tensors(self, mask)
    return x[m]


def _masked_scatter_(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    if self.dtype is not source.dtype:
        raise RuntimeError(
            f"masked_scatter_: expected self and source to have same dtypes but got {self.dtype} and {source.dtype}"
        )
    m = mask.expand(self.shape)
    self[m] = source.reshape(-1)[: int(m.sum())]
    return self


def _triangle_indices(name: str) -> Callable[..., torch.Tensor]:
    """``tril_indices`` and its twin; PyTorch's formula for devices needs float64."""

    def run(
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> torch.Tensor:
        return getattr(torch, name)(row, col, offset, dtype=dtype or torch.int64).to(device or "webgpu")

    return run


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """``i`` as often as ``repeats[i]`` says; without ``output_size`` it waits for their sum."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return repeats.clone()
    ends = repeats.cumsum(0)
    total = output_size
    if total is None:
        total, least = torch.stack((ends[-1], repeats.min().to(ends.dtype))).tolist()
        if least < 0:
            raise RuntimeError("repeats can not be negative")
    return torch.searchsorted(ends, torch.arange(total, device=repeats.device), right=True).to(repeats.dtype)


for _name in ("tril_indices", "triu_indices"):
    _aten.impl(_name, _triangle_indices(_name), "PrivateUse1")
_aten.impl("repeat_interleave.Tensor", _repeat_interleave, "PrivateUse1")
_package.impl("index_on_host", _index, "PrivateUse1")
_package.impl("index_put_on_host", _index_put, "PrivateUse1")
_package.impl("index_put_on_host_", _index_put_, "PrivateUse1")
_package.impl("index_put_impl_on_host_", _index_put_, "PrivateUse1")
_aten.impl("nonzero", _nonzero, "PrivateUse1")
_aten.impl("nonzero_static", _nonzero_static, "PrivateUse1")
_aten.impl("masked_select", _masked_select, "PrivateUse1")
_aten.impl("masked_scatter_", _masked_scatter_, "PrivateUse1")
