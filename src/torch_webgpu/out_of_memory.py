"""The one error that is of PyTorch's class too, and so needs PyTorch; ``errors`` has it with the others."""

from __future__ import annotations

import torch

from .errors import WebGPUError


class OutOfMemoryError(WebGPUError, torch.OutOfMemoryError):
    """The device has no memory left for a buffer."""

    __module__ = "torch_webgpu.errors"
