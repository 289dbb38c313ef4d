"""What the two implementations have in common: adapter facts, limits, the interface of a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

#: The limits a device gets when none are asked for (WebGPU specification, "Limits"). The largest buffer is not among them:
#: a tensor is one buffer, and its size is a matter of memory, not of what a kernel may do.
SPEC_LIMITS: dict[str, int] = {
    "maxBindGroups": 4,
    "maxBindingsPerBindGroup": 1000,
    "maxDynamicUniformBuffersPerPipelineLayout": 8,
    "maxStorageBuffersPerShaderStage": 8,
    "maxUniformBufferBindingSize": 65536,
    "maxStorageBufferBindingSize": 128 << 20,
    "maxComputeWorkgroupStorageSize": 16384,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupSizeY": 256,
    "maxComputeWorkgroupSizeZ": 64,
    "maxComputeWorkgroupsPerDimension": 65535,
}

#: Features asked for where the adapter has them.
WANTED_FEATURES = ("shader-f16", "subgroups", "timestamp-query")


@dataclass(frozen=True)
class Shader:
    """What a pipeline is made of; see ``DeviceHandle.create_pipeline``.

    Attributes:
        accesses: one flag a storage binding: True where it is written.
        uniform_slots: 256-byte pieces of the uniform at the binding after them.
        name: the op, for people.
    """

    code: str
    accesses: tuple[bool, ...]
    uniform_slots: int
    name: str


@dataclass
class AdapterInfo:
    """Facts of one adapter.

    Attributes:
        name: the adapter's own name.
        kind: ``discrete``, ``integrated``, ``cpu`` or ``unknown``; ``null`` is Dawn's driver that does nothing.
        features: those of ``WANTED_FEATURES`` it has.
        limits: its maximum limits, by their WebGPU names.
    """

    implementation: str
    index: int
    name: str
    kind: str
    backend: str
    driver: str
    features: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    handle: Any = None


class Target(Protocol):
    """What kernels are made for: what a device grants, be it here or described."""

    adapter: AdapterInfo
    features: tuple[str, ...]
    limits: dict[str, int]


class DeviceHandle(Target, Protocol):
    """A device made with a wheel's own bindings."""

    library: str
    #: Whether commands may be encoded in one thread while buffers and pipelines are made in another.
    threadsafe: bool

    def pointers(self) -> tuple[int, int, int]:
        """Addresses of device, queue and instance."""

    def create_pipeline(self, code: str, accesses: tuple[bool, ...], uniform_bytes: int) -> tuple[int, int]:
        """Compiles WGSL whose entry point is ``main``.

        Args:
            code: the WGSL module.
            accesses: one flag a storage binding: True where it is written.
            uniform_bytes: size of the uniform at the binding after them; it has a dynamic offset. 0 for none.

        Returns:
            Addresses of pipeline and bind group layout. Errors arrive at the uncaptured-error callback.
        """


class Implementation(Protocol):
    """One of the WebGPU libraries."""

    name: str

    def wheel_version(self) -> str:
        """Version of the wheel."""

    def adapters(self) -> list[AdapterInfo]:
        """All adapters, the preferred one first."""

    def open(self, adapter: AdapterInfo, limits: dict[str, int], callbacks: tuple[int, int]) -> DeviceHandle:
        """Makes a device with the given limits and the native callbacks (uncaptured error, device lost)."""


@dataclass(eq=False)
class DescribedTarget:
    """A device that is elsewhere: kernels are chosen for it and written down, never run here.

    Attributes:
        features, limits: what it grants.
        adapter: of unknown name; its kind decides how kernels are shaped (``cpu`` for rasterisers).
        shaders: the pipelines made for it, by number.
        pipelines: their numbers, by what a graph knows them by.
    """

    features: tuple[str, ...]
    limits: dict[str, int]
    adapter: AdapterInfo = field(default_factory=lambda: AdapterInfo("described", 0, "", "unknown", "", ""))
    shaders: list[Shader] = field(default_factory=list)
    pipelines: dict[Any, int] = field(default_factory=dict)

    def add(self, shader: Shader) -> int:
        """The number of a pipeline; equal ones have one."""
        key = (shader.code, shader.accesses, shader.uniform_slots)
        if key not in self._numbers:
            self._numbers[key] = len(self.shaders)
            self.shaders.append(shader)
        return self._numbers[key]

    _numbers: dict[Any, int] = field(default_factory=dict, repr=False)
