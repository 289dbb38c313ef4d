"""The module ``torch.webgpu``, in the shape of PyTorch's own accelerator modules."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from . import _C, adaptations

DeviceLike = torch.device | str | int | None


class DeviceProperties:
    """What is known of the adapter.

    Attributes:
        name: the adapter's name.
        implementation: ``wgpu`` or ``dawn``.
        backend: the system API beneath (Vulkan, Metal, D3D12).
        total_memory: bytes; WebGPU does not tell, so this is the largest single buffer.
        features: WebGPU features of the device.
        limits: granted limits by WebGPU name.
    """

    def __init__(self) -> None:
        from .runtime import device as open_device

        handle = open_device()
        self.name = handle.adapter.name
        self.kind = handle.adapter.kind
        self.implementation = handle.adapter.implementation
        self.backend = handle.adapter.backend
        self.driver = handle.adapter.driver
        self.features = handle.features
        self.limits = dict(handle.limits)
        self.total_memory = handle.limits["maxBufferSize"]

    def __repr__(self) -> str:
        return (
            f"DeviceProperties(name={self.name!r}, kind={self.kind!r}, implementation={self.implementation!r}, "
            f"backend={self.backend!r}, total_memory={self.total_memory // 2**20}MB)"
        )


def is_available() -> bool:
    """Whether an adapter is found."""
    from .errors import WebGPUError
    from .runtime import start

    try:
        start()
    except WebGPUError:
        return False
    return True


def is_initialized() -> bool:
    """Whether the device has been opened in this process."""
    from .runtime import is_open

    return is_open() and not _bad_fork


def device_count() -> int:
    """1, or 0 without an adapter; ``TORCH_WEBGPU_ADAPTER`` chooses which of several."""
    return int(is_available())


def current_device() -> int:
    """Always 0."""
    return 0


def set_device(device: DeviceLike) -> None:
    """Accepts the only device; raises RuntimeError for any other.

    In a process that torchrun started the number of the process (``LOCAL_RANK``) names that device too: launchers and
    ``DeviceMesh`` count the processes of a machine so, and each has its own.
    """
    index = torch.device(device).index if isinstance(device, (str, torch.device)) else device
    if index not in (None, 0) and str(index) != os.environ.get("LOCAL_RANK"):
        raise RuntimeError(f"webgpu has one device per process, got {device!r}; choose it with TORCH_WEBGPU_ADAPTER")


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all submitted work; raises what went wrong in it."""
    _C.synchronize()


class Stream(torch.Stream):
    """The device's one queue, which orders everything: all streams are this one."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        """``priority`` has no meaning here."""
        set_device(device)
        return super().__new__(cls, "webgpu", priority=priority, **kwargs)


class Event(torch.Event):
    """A point in the queue, to ask about or wait for.

    With ``enable_timing`` ``record()`` waits for the work before it, and ``elapsed_time`` gives milliseconds of the host's
    clock between two such moments: WebGPU measures time within single passes only.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        """Raises RuntimeError for an event to be shared between processes."""
        if interprocess:
            raise RuntimeError("webgpu: events cannot be shared between processes")
        return super().__new__(cls, "webgpu", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: DeviceLike = None) -> Stream:
    """The only stream."""
    return Stream(device)


def default_stream(device: DeviceLike = None) -> Stream:
    """The only stream."""
    return Stream(device)


def set_stream(stream: torch.Stream) -> None:
    """Accepts the only stream; raises RuntimeError for another device's."""
    if stream.device.type != "webgpu":
        raise RuntimeError(f"expected a webgpu stream, got {stream}")


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Context manager of the current stream; there is only one."""
    if stream is not None:
        set_stream(stream)
    yield


def reset() -> None:
    """Opens the device anew after it was lost (a driver reset); does nothing to a device that works.

    Tensors made before are gone: using one raises ``DeviceLostError``. Compiled functions go on with new tensors.

    Raises:
        NoAdapterError: there is no adapter any more.
        DeviceLostError: in a process that was forked from one with an open device.
    """
    from .runtime import reopen

    reopen()


def empty_cache() -> None:
    """Gives cached buffers back to the system."""
    _C.empty_cache()


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes in live tensors (rounded to allocation granularity)."""
    return int(_C.memory_stats()["allocated"])


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Most bytes in live tensors so far."""
    return int(_C.memory_stats()["max_allocated"])


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes in live and cached buffers."""
    return int(_C.memory_stats()["reserved"])


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Most bytes in live and cached buffers so far."""
    return int(_C.memory_stats()["max_reserved"])


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """All counters of the allocator."""
    return dict(_C.memory_stats())


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the maxima again from the present values."""
    _C.reset_peak_memory_stats()


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, limits and features of the adapter."""
    return DeviceProperties()


def get_device_name(device: DeviceLike = None) -> str:
    """The adapter's name."""
    return DeviceProperties().name


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """Granted limits, and features as flags."""
    p = DeviceProperties()
    return {**p.limits, **{f: True for f in p.features}}


def manual_seed(seed: int) -> None:
    """Seeds the device's default generator."""
    default_generators[0].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator: there is one."""
    manual_seed(seed)


def seed() -> int:
    """Seeds from the system's entropy and returns the seed."""
    return default_generators[0].seed()


def initial_seed() -> int:
    """The current seed."""
    return default_generators[0].initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """State of the default generator, uint8[16] on the CPU: seed and counter offset."""
    return default_generators[0].get_state()


def set_rng_state(state: torch.Tensor, device: DeviceLike = None) -> None:
    """Restores what ``get_rng_state`` gave."""
    default_generators[0].set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every device's generator: there is one."""
    return [get_rng_state()]


def set_rng_state_all(states: Sequence[torch.Tensor]) -> None:
    """Restores what ``get_rng_state_all`` gave."""
    for state in states:
        set_rng_state(state)


def seed_all() -> None:
    """Seeds every device's generator from the system's entropy: there is one."""
    seed()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes of autocast."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """bfloat16 is stored packed and computed in float32 everywhere."""
    return True


_bad_fork = False


def _is_in_bad_fork() -> bool:
    return _bad_fork


def _after_fork() -> None:
    global _bad_fork
    from .runtime import is_open

    _bad_fork = is_open()


def _lazy_init() -> None:
    """PyTorch calls it before some uses; opening waits for the first tensor."""


class device:  # noqa: N801 - the name PyTorch's modules use
    """Context manager of the current device; there is only one."""

    def __init__(self, device: DeviceLike) -> None:
        set_device(device)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


default_generators: tuple[torch.Generator, ...] = ()


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint asks whether there are random numbers to repeat
        return is_initialized()
    return adaptations.inductor_class(name)


def register() -> None:
    """Names the device, and gives PyTorch this module as ``torch.webgpu``."""
    global default_generators
    torch.utils.rename_privateuse1_backend("webgpu")
    module = sys.modules[__name__]
    assert isinstance(module, ModuleType)
    torch._register_device_module("webgpu", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True, unsupported_dtype=None)
    default_generators = (_C.default_generator(),)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    adaptations.install()
