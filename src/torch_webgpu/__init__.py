"""A PyTorch device for WebGPU: ``device="webgpu"``.

``import torch`` alone registers the device (PyTorch's ``torch.backends`` entry point). The adapter is opened at the
first use.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        DeviceLostError,
        ExportError,
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
_registered = False


def fallbacks() -> dict[str, int]:
    """Ops that ran on the CPU for want of a kernel, and how often, since the start of the process."""
    from . import _C, decompositions

    return _C.fallbacks() | decompositions.python_fallbacks()


def _autoload() -> None:
    """Registers the device; the entry point of ``torch.backends``. Later calls do nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    import torch  # noqa: F401 - comes first: it calls this function again, and the native core needs its libraries

    from . import _C, device_module, distributed, ops, registry  # noqa: F401

    device_module.register()
    distributed.register()
    ops.load()
    registry.install()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import errors

    return getattr(errors, name)


__all__ = [
    "DeviceLostError",
    "ExportError",
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

# The command line answers --help without torch, and registers where a command needs the device.
if PurePath((sys.argv or [""])[0]).stem != "torch-webgpu":
    _autoload()
