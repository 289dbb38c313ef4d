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


class DeviceHandle(Protocol):
    """A device made with a wheel's own bindings."""

    adapter: AdapterInfo
    features: tuple[str, ...]
    limits: dict[str, int]
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
