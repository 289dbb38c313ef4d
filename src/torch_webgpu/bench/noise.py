"""Inputs that Python and a page make alike, bit for bit, out of a few numbers: a page need not load them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_SPREAD = np.float32(3**0.5)  # of a uniform distribution around 0 with a variance of 1


@dataclass(frozen=True)
class Noise:
    """float32 numbers, uniformly distributed with a variance of 1, then ``offset + scale * number``.

    Number i comes from a hash of ``seed * 2654435769 + i`` (Wellons' *lowbias32*), of which 24 bits are kept: every step is
    exact in float32 or rounded once, so that JavaScript's ``Math.fround`` gives the same.
    """

    shape: tuple[int, ...]
    seed: int
    scale: float = 1.0
    offset: float = 0.0

    def tensor(self) -> torch.Tensor:
        """The numbers on the CPU."""
        x = np.arange(int(np.prod(self.shape)), dtype=np.uint32) + np.uint32(self.seed * 2654435769 % 2**32)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
            x ^= x >> np.uint32(shift)
            x *= np.uint32(factor)
        uniform = (x >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
        values = np.float32(self.offset) + np.float32(self.scale) * (uniform * _SPREAD)
        return torch.from_numpy(values.reshape(self.shape))

    def to_dict(self) -> dict[str, Any]:
        """For the page."""
        return {
            "shape": list(self.shape),
            "seed": self.seed,
            "scale": float(np.float32(self.scale)),
            "offset": float(np.float32(self.offset)),
            "spread": float(_SPREAD),
        }
