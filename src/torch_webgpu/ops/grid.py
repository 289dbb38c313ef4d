"""Sampling at the points of a grid, in two and three dimensions, and its backward; composed of gathers.

Each spatial dimension gives a few taps: places, weights, and the weights' derivatives. A corner is one tap of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

_aten = torch.library.Library("aten", "IMPL")
BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
_SHARPNESS = -0.75  # of the cubic convolution (Keys 1981)


@dataclass
class _Tap:
    """A neighbour along one dimension.

    Attributes:
        place: its index, inside the image.
        inside: whether it really is there; it counts as 0 otherwise.
        weight, slope: its share of the sample, and the share's derivative by the coordinate.
    """

    place: torch.Tensor
    inside: torch.Tensor
    weight: torch.Tensor
    slope: torch.Tensor


def _reflected(x: torch.Tensor, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` mirrored at both ends until it is between them, and the derivative: 1 or -1."""
    if high == low:
        return torch.zeros_like(x), torch.zeros_like(x)
    distance = (x - low).abs()
    flips = torch.floor(distance / (high - low))
    extra = distance - flips * (high - low)
    even = flips % 2 == 0
    sign = torch.where((x < low) == even, -1.0, 1.0).to(x.dtype)
    return torch.where(even, extra + low, high - extra), sign


def _padded(x: torch.Tensor, size: int, padding: int, align: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A coordinate moved into the image as the padding says, and the derivative."""
    slope = torch.ones_like(x)
    if padding == REFLECTION:
        x, slope = _reflected(x, 0.0 if align else -0.5, size - 1.0 if align else size - 0.5)
    if padding != ZEROS:
        slope = torch.where((x > 0) & (x < size - 1), slope, 0.0)
        x = x.clamp(0, size - 1)
    return x, slope


def _tap(x: torch.Tensor, size: int, weight: torch.Tensor, slope: torch.Tensor) -> _Tap:
    inside = (x >= 0) & (x <= size - 1)
    return _Tap(torch.where(inside, x, 0.0).to(torch.int64), inside, weight, slope)


def _cubic(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys' kernel at a distance of 0 to 2, and its derivative by the distance."""
    a, near = _SHARPNESS, x <= 1
    value = torch.where(near, ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a)
    slope = torch.where(near, (3 * (a + 2) * x - 2 * (a + 3)) * x, (3 * a * x - 10 * a) * x + 8 * a)
    return value, slope


def _taps(grid: torch.Tensor, size: int, mode: int, padding: int, align: bool) -> tuple[list[_Tap], torch.Tensor]:
    """The taps of one dimension, and the derivative of its coordinate by the grid's number."""
    scale = (size - 1) / 2 if align else size / 2
    x = (grid + 1) * scale - (0.0 if align else 0.5)
    if mode == BICUBIC:
        first = x.floor()
        taps = []
        for offset in (-1, 0, 1, 2):
            distance = first + offset - x
            weight, slope = _cubic(distance.abs())
            place, _ = _padded(first + offset, size, padding, align)
            taps.append(_tap(place, size, weight, slope * -torch.sign(distance)))
        return taps, torch.full_like(x, scale)
    x, slope = _padded(x, size, padding, align)
    if mode == NEAREST:
        return [_tap(x.round(), size, torch.ones_like(x), torch.zeros_like(x))], slope * scale
    first = x.floor()
    share, one = x - first, torch.ones_like(x)
    return [_tap(first, size, 1 - share, -one), _tap(first + 1, size, share, one)], slope * scale


def _corners(
    x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool
) -> tuple[list[tuple[_Tap, ...]], list[torch.Tensor]]:
    """Every corner (a tap of each dimension), and the derivatives of the coordinates; numbers are (N, points)."""
    sizes = x.shape[2:]
    points = grid.reshape(grid.shape[0], -1, grid.shape[-1]).float()
    each = [_taps(points[..., len(sizes) - 1 - d], size, mode, padding, align) for d, size in enumerate(sizes)]
    return list(product(*(taps for taps, _ in each))), [slope for _, slope in each]


def _places(corner: Sequence[_Tap], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, C, points) index into the image as a line, and (N, 1, points) whether the corner is inside it."""
    place, inside = corner[0].place, corner[0].inside
    for tap, size in zip(corner[1:], x.shape[3:], strict=True):
        place, inside = place * size + tap.place, inside & tap.inside
    return place[:, None].expand(-1, x.shape[1], -1), inside[:, None]


def _weight(corner: Sequence[_Tap], derived: int | None = None) -> torch.Tensor:
    """(N, 1, points) share of a corner; with ``derived``, its derivative by that dimension's coordinate."""
    factors = [tap.slope if d == derived else tap.weight for d, tap in enumerate(corner)]
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total[:, None]


def _check(x: torch.Tensor, grid: torch.Tensor) -> None:
    if x.dtype != grid.dtype:
        raise RuntimeError(
            f"grid_sampler(): expected input and grid to have the same dtype, but got {x.dtype}, {grid.dtype}"
        )
    if x.dim() - 2 != grid.shape[-1] or x.shape[0] != grid.shape[0]:
        raise RuntimeError(f"grid_sampler(): input {list(x.shape)} and grid {list(grid.shape)} do not fit")
    if not all(x.shape[2:]):
        raise RuntimeError(f"grid_sampler(): expected input to have non-empty spatial dimensions, got {list(x.shape)}")


def _forward(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool) -> torch.Tensor:
    _check(x, grid)
    line = x.flatten(2)
    corners, _ = _corners(x, grid, mode, padding, align)
    total = torch.zeros((*line.shape[:2], grid.shape[1:-1].numel()), dtype=torch.float32, device=x.device)
    for corner in corners:
        place, inside = _places(corner, x)
        total = total + torch.where(inside, line.gather(2, place).float(), 0.0) * _weight(corner)
    return total.to(x.dtype).reshape(*x.shape[:2], *grid.shape[1:-1])


def _backward(
    grad: torch.Tensor, x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    line, grad = x.flatten(2), grad.flatten(2).float()
    corners, slopes = _corners(x, grid, mode, padding, align)
    to_input = torch.zeros(line.shape, dtype=torch.float32, device=x.device)
    to_grid = [torch.zeros_like(slope) for slope in slopes]
    for corner in corners:
        place, inside = _places(corner, x)
        if wanted[0]:
            to_input.scatter_add_(2, place, torch.where(inside, grad * _weight(corner), 0.0))
        if wanted[1] and mode != NEAREST:
            value = (torch.where(inside, line.gather(2, place).float(), 0.0) * grad).sum(1)
            to_grid = [g + value * _weight(corner, d)[:, 0] for d, g in enumerate(to_grid)]
    columns = [g * slope for g, slope in zip(to_grid, slopes, strict=True)][::-1]
    return (
        to_input.to(x.dtype).reshape(x.shape) if wanted[0] else None,
        torch.stack(columns, -1).to(grid.dtype).reshape(grid.shape) if wanted[1] else None,
    )


for _rank in (2, 3):
    _aten.impl(f"grid_sampler_{_rank}d", _forward, "PrivateUse1")
    _aten.impl(f"grid_sampler_{_rank}d_backward", _backward, "PrivateUse1")
