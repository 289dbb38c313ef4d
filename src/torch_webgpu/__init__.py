"""A PyTorch device for WebGPU: ``device="webgpu"``.

``import torch`` alone registers the device (PyTorch's ``torch.backends`` entry point). The adapter is opened at the first use.
"""

from __future__ import annotations

from . import _C, ops, registry
from .device_module import register as _register_device
from .errors import (
    DeviceLostError,
    FallbackError,
    InternalError,
    LimitError,
    MissingImplementationError,
    NoAdapterError,
    OutOfMemoryError,
    ShaderError,
    UnsupportedDTypeError,
    ValidationError,
    WebGPUError,
)

__version__ = "0.1.0"


def fallbacks() -> dict[str, int]:
    """Ops that ran on the CPU for want of a kernel, and how often, since the start of the process."""
    return dict(_C.fallbacks())


def _autoload() -> None:
    """Entry point of ``torch.backends``: importing the module has done the work."""


def _register() -> None:
    _register_device()
    ops.load()
    registry.install()


_register()

__all__ = [
    "DeviceLostError",
    "FallbackError",
    "InternalError",
    "LimitError",
    "MissingImplementationError",
    "NoAdapterError",
    "OutOfMemoryError",
    "ShaderError",
    "UnsupportedDTypeError",
    "ValidationError",
    "WebGPUError",
    "fallbacks",
]
