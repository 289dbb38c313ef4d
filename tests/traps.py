"""What the tests of known traps share: inputs that broke other accelerator stacks, each widened to its kind."""

from __future__ import annotations

from typing import Any

import torch

import torch_webgpu  # noqa: F401 - registers the device

DEVICE = "webgpu"
NAN, INF = float("nan"), float("inf")
NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
OFFSETS = (*range(9), 31, 32, 63, 64, 65, 127)
SIZES = (1, 2, 3, 31, 63, 64, 65, 255, 256, 257, 1000, 4097)


def same(got: torch.Tensor, want: Any, tolerance: float = 0.0) -> None:
    """Equal values, NaN equal to NaN; lists and numbers stand for a tensor of the result's dtype."""
    have = got.detach().cpu()
    expected = want if isinstance(want, torch.Tensor) else torch.tensor(want, dtype=have.dtype)
    torch.testing.assert_close(have, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def put(values: object, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(DEVICE)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
