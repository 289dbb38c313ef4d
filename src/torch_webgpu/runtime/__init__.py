"""The device: which implementation and adapter it is, what it grants, and the compiler of pipelines."""

from __future__ import annotations

import atexit
import importlib
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .. import _C
from ..config import config
from ..errors import (
    DeviceLostError,
    MissingImplementationError,
    NoAdapterError,
    OutOfMemoryError,
    ShaderError,
    WebGPUError,
)
from .base import SPEC_LIMITS, AdapterInfo, DescribedTarget, DeviceHandle, Implementation, Shader, Target

_MODULES = {"wgpu": "wgpu_native", "dawn": "dawn"}
_WHEELS = {"wgpu": "wgpu>=0.32,<0.33", "dawn": "dawn-python==0.3.0"}
_lock = threading.Lock()
_compile_lock = threading.Lock()  # so that the errors found after compiling are this shader's
_device: DeviceHandle | None = None
_lost: list[DeviceHandle] = []  # kept, so that no later device gets the address of one of them
_shaders: dict[int, Shader] = {}
_numbers: dict[tuple[str, tuple[bool, ...], int], int] = {}
_described: ContextVar[DescribedTarget | None] = ContextVar("target", default=None)

NO_ADAPTER = (
    "No WebGPU adapter was found. On Debian or Ubuntu install a Vulkan driver: `apt-get install libvulkan1 "
    "mesa-vulkan-drivers` (Intel, AMD, and a CPU rasteriser for machines without a GPU), or NVIDIA's driver with "
    "`libvulkan1 libegl1`. On Windows and macOS the system's own driver is used. `torch-webgpu info` shows "
    "what is found."
)


def implementation(name: str) -> Implementation:
    """The binding module of ``wgpu`` or ``dawn``; raises MissingImplementationError without its wheel."""
    # Vulkan loaders and Mesa complain on stderr about a missing runtime directory.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    try:
        module: Any = importlib.import_module(f".{_MODULES[name]}", __name__)
    except (ImportError, OSError) as e:
        other = "dawn" if name == "wgpu" else "wgpu"
        raise MissingImplementationError(
            f"The WebGPU implementation {name!r} cannot be loaded ({e}). Install it with `pip install "
            f"'{_WHEELS[name]}'`, or choose the other one with TORCH_WEBGPU_IMPL={other}."
        ) from e
    return module


def choose_adapter(adapters: list[AdapterInfo], wanted: str) -> AdapterInfo:
    """The adapter that ``wanted`` (part of a name, an index, or "" for the best) names."""
    if not adapters:
        raise NoAdapterError(NO_ADAPTER)
    if not wanted:
        return adapters[0]
    for adapter in adapters:
        if wanted == str(adapter.index) or wanted.lower() in adapter.name.lower():
            return adapter
    listed = ", ".join(f"{a.index}: {a.name}" for a in adapters)
    raise NoAdapterError(f"TORCH_WEBGPU_ADAPTER={wanted!r} matches none of the adapters ({listed}).")


def _pick() -> tuple[Implementation, AdapterInfo]:
    """Implementation and adapter: the first of wgpu-native and Dawn that is installed and finds one."""
    if config.impl != "auto":
        impl = implementation(config.impl)
        return impl, choose_adapter(impl.adapters(), config.adapter)
    failure: WebGPUError | None = None
    for name in _MODULES:
        try:
            impl = implementation(name)
            return impl, choose_adapter(impl.adapters(), config.adapter)
        except WebGPUError as e:
            # What the preferred one says matters most, but a missing wheel less than a missing adapter.
            if failure is None or isinstance(failure, MissingImplementationError):
                failure = e
    assert failure is not None
    raise failure


def start(chosen: tuple[Implementation, AdapterInfo] | None = None) -> None:
    """Makes the device. Called by the native core at the first use; later calls do nothing.

    Args:
        chosen: instead of what the environment names.
    """
    global _device
    with _lock:
        if _device is not None:
            return
        impl, adapter = chosen or _pick()
        limits = dict(SPEC_LIMITS) if config.limits == "default" else {}
        handle = impl.open(adapter, limits, _C.callbacks())
        if adapter.kind == "cpu" and not (config.adapter or chosen):
            warnings.warn(
                f"webgpu runs on a CPU rasteriser ({adapter.name}): no GPU was found. Results are right, speed is not "
                "that of a GPU. Set TORCH_WEBGPU_ADAPTER to choose it on purpose and silence this.",
                stacklevel=2,
            )
        device, queue, instance = handle.pointers()
        _device = handle
        _C.attach(
            handle.library,
            adapter.name,
            device,
            queue,
            instance,
            impl.name == "dawn",
            config.debug,
            handle.threadsafe,
            "timestamp-query" in handle.features,
            adapter.kind != "null",
            handle.limits["maxBufferSize"],
            handle.limits["maxStorageBufferBindingSize"],
        )
        atexit.register(_C.drain)  # the encoder's thread must not be inside the library when it is unloaded


def reopen() -> None:
    """Makes the device anew after it was lost; does nothing to one that works."""
    global _device
    from ..recipe import clear_pipelines

    with _lock:
        if _device is None or not _C.detach():
            return
        _lost.append(_device)
        _device = None
        clear_pipelines()
    start()


def is_open() -> bool:
    """Whether the device has been made."""
    return _device is not None


def device() -> DeviceHandle:
    """The device, made if it is not there yet."""
    if _device is None:
        start()
    assert _device is not None
    return _device


def described() -> DescribedTarget | None:
    """The device elsewhere that kernels are made for at the moment, if any."""
    return _described.get()


def target() -> Target:
    """What kernels are made for: this device, or inside of ``targeting`` the one described there."""
    return _described.get() or device()


@contextmanager
def targeting(elsewhere: DescribedTarget) -> Iterator[None]:
    """Inside, this thread's lowerings choose and write down kernels for another device; nothing may be launched."""
    token = _described.set(elsewhere)
    try:
        yield
    finally:
        _described.reset(token)


def create_pipeline(code: str, accesses: tuple[bool, ...], uniform_slots: int, name: str) -> int:
    """Compiles WGSL, where that was not done before, and returns the native core's pipeline id.

    For a described target it is only noted, and the number is the target's.

    Raises:
        ShaderError: with the WGSL lines around the fault.
    """
    if (elsewhere := described()) is not None:
        return elsewhere.add(Shader(code, accesses, uniform_slots, name))
    handle = device()
    known = _numbers.get((code, accesses, uniform_slots))
    if known is not None:
        return known
    with _compile_lock:
        _C.drain()  # errors of commands recorded before are not this shader's
        pipeline, layout = handle.create_pipeline(code, accesses, uniform_slots * 256)
        errors = _C.take_errors()
    if errors or not pipeline:
        raise _pipeline_error(name, code, errors)
    number = _C.add_pipeline(pipeline, layout, len(accesses), uniform_slots, name)
    _shaders[number] = Shader(code, accesses, uniform_slots, name)
    _numbers[code, accesses, uniform_slots] = number
    return number


def shader_of(pipeline: int) -> Shader:
    """What a pipeline was made of, by the native core's number."""
    return _shaders[pipeline]


def clear_pipelines() -> None:
    """Makes every pipeline anew when it is asked for again."""
    _numbers.clear()


def _pipeline_error(name: str, code: str, errors: list[tuple[int, str]]) -> Exception:
    kinds = {kind for kind, _ in errors}
    text = "\n".join(message.strip() for _, message in errors) or "no message"
    if 6 in kinds:
        return DeviceLostError(f"The device was lost while compiling {name}: {text}")
    if 3 in kinds:
        return OutOfMemoryError(f"Out of memory while compiling {name}: {text}")
    numbered = "\n".join(f"{i:4} | {line}" for i, line in enumerate(code.splitlines(), 1))
    return ShaderError(f"The shader of {name} does not compile: {text}\n{numbered}")
