"""Every error of the package. The native core raises them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .out_of_memory import OutOfMemoryError as OutOfMemoryError


class WebGPUError(RuntimeError):
    """Base of all errors that come from the WebGPU device."""


class NoAdapterError(WebGPUError):
    """No WebGPU adapter was found; the message says what to install."""


class MissingImplementationError(WebGPUError):
    """The wheel of the chosen WebGPU implementation is not installed."""


class ValidationError(WebGPUError):
    """The WebGPU library refused a command."""


class ShaderError(WebGPUError):
    """A shader did not compile; the message shows the WGSL lines around the fault."""


class LimitError(WebGPUError):
    """An operation needs more than the device's limits allow."""


class DeviceLostError(WebGPUError):
    """The device is gone (driver reset, GPU removed); torch.webgpu.reset() opens it anew."""


class InternalError(WebGPUError):
    """The WebGPU library failed for a reason of its own."""


class UnsupportedDTypeError(WebGPUError, TypeError):
    """The device has no such dtype (float64, complex, …); the message names the way out."""


class FallbackError(WebGPUError, NotImplementedError):
    """An op would have run on the CPU while ``TORCH_WEBGPU_FALLBACK=error``."""


class ExportError(WebGPUError):
    """A program that cannot be exported; the message names what is in the way, and the way out."""


def __getattr__(name: str) -> type[WebGPUError]:
    """Finds ``OutOfMemoryError``: it alone needs PyTorch, and what serves pages does without."""
    if name != "OutOfMemoryError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch  # noqa: F401 - comes first: it loads the rest of the package, which asks for the class as well

    from .out_of_memory import OutOfMemoryError

    return OutOfMemoryError
