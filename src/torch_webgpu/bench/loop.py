"""One kernel on a device of its own, dispatched n times in several ways by C++ loops (csrc/loops.cpp).

The kernel adds one to every word of a buffer, so that what it has done can be checked: as many as there were dispatches.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from .. import _C, runtime
from ..errors import WebGPUError
from ..runtime.base import AdapterInfo, DeviceHandle
from .names import ONE_PASS, PASSES, PHASE_ORDER, READ_BACK, SEQUENTIAL, UNWAITED, WAITED
from .targets import NULL

#: In the order of csrc/loops.h. All but the last two make an encoder, a pass and a submit for each dispatch.
METHODS = (WAITED, READ_BACK, UNWAITED, SEQUENTIAL, PASSES, ONE_PASS)
WORKGROUP = 64


@dataclass(frozen=True)
class Kernel:
    """What a dispatch does.

    Attributes:
        bindings: storage buffers; the first is written.
        pipelines: different ones, taken in turn.
        spin: rounds of a xorshift generator in every invocation, to make the kernel last.
        uniform: whether there is a uniform with a dynamic offset too, as in the kernels of webgpu tensors.
    """

    bindings: int = 1
    workgroups: int = 4
    pipelines: int = 1
    spin: int = 0
    uniform: bool = False

    def code(self, number: int) -> str:
        """WGSL of one of its pipelines; the compiler cannot know that only ones are added."""
        others = range(1, self.bindings)
        lines = ["@group(0) @binding(0) var<storage, read_write> count: array<u32>;"]
        lines += [f"@group(0) @binding({i}) var<storage, read> zeros{i}: array<u32>;" for i in others]
        added = ["1u", *(f"zeros{i}[i]" for i in others)]
        if self.uniform:
            lines.append(f"@group(0) @binding({self.bindings}) var<uniform> zero: array<vec4<u32>, 16>;")
            added.append("zero[0].x")
        body = []
        if self.spin:
            rounds = "x ^= x << 13u; x ^= x >> 17u; x ^= x << 5u;"
            body = ["var x = count[i] + 1u;", f"for (var k = 0u; k < {self.spin}u; k++) {{ {rounds} }}"]
            added.append("u32(x == 2654435769u)")
        if self.pipelines > 1:
            added.append(f"u32(count[i] == {4294967295 - number}u)")
        lines += [
            f"@compute @workgroup_size({WORKGROUP})",
            "fn main(@builtin(global_invocation_id) id: vec3<u32>) {",
            "  let i = id.x;",
            *(f"  {line}" for line in body),
            f"  count[i] = count[i] + {' + '.join(added)};",
            "}",
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Sample:
    """Microseconds of n dispatches.

    Attributes:
        wall: until the GPU has done them.
        host: until the calls have returned, without the cost of reading the clock.
        gpu: between the ends of passes, by timestamps; None where they were not asked for.
        dropped: negative differences of timestamps, which are not in ``gpu``.
        step: what the timestamps' differences are multiples of, in nanoseconds.
    """

    wall: float
    host: float
    gpu: float | None = None
    dropped: int = 0
    step: int = 0


def adapter_of(implementation: str, index: int = 0) -> AdapterInfo:
    """An adapter by what ``torch-webgpu info`` calls it, or the null driver, ``dawn-null``.

    Raises:
        MissingImplementationError: without the wheel.
        WebGPUError: where there is no such adapter.
    """
    if implementation == NULL:
        from ..runtime import dawn

        null = dawn.null_adapter() if runtime.implementation("dawn") else None
        if null is None:
            raise WebGPUError("This build of Dawn has no null driver.")
        return null
    return runtime.choose_adapter(runtime.implementation(implementation).adapters(), str(index))


class Device:
    """A device beside the one of webgpu tensors. Errors of both are collected in one list, which ``check`` raises."""

    def __init__(self, adapter: AdapterInfo) -> None:
        self.adapter = adapter
        self.handle: DeviceHandle = runtime.implementation(adapter.implementation).open(adapter, {}, _C.callbacks())
        self.clock_ns = _C.clock_cost()

    @property
    def computes(self) -> bool:
        """Whether kernels run: not on the null driver."""
        return self.adapter.kind != "null"

    @property
    def timestamps(self) -> bool:
        """Whether the GPU's time can be measured."""
        return self.computes and "timestamp-query" in self.handle.features

    def check(self, what: str) -> None:
        """Raises WebGPUError for what the library has complained of."""
        errors = _C.take_errors()
        if errors:
            raise WebGPUError(f"{what}: {errors[0][1].strip()}")


class Loop:
    """A kernel on a device, ready to run."""

    def __init__(self, device: Device, kernel: Kernel = Kernel()) -> None:
        """Compiles; raises WebGPUError where the device refuses."""
        self.device, self.kernel, self.dispatched = device, kernel, 0
        words = kernel.workgroups * WORKGROUP
        accesses = (True,) + (False,) * (kernel.bindings - 1)
        uniform = 256 if kernel.uniform else 0
        handle = device.handle
        made = [handle.create_pipeline(kernel.code(k), accesses, uniform) for k in range(kernel.pipelines)]
        device.check(f"{kernel}")
        pointers = handle.pointers()
        dawn = device.adapter.implementation == "dawn"
        self._loop: Any = _C.make_loop(
            handle.library, *pointers, dawn, made, kernel.bindings, words * 4, uniform, kernel.workgroups
        )
        device.check(f"{kernel}")

    def run(self, method: str, n: int, delay: float = 0, timestamps: bool = False) -> Sample:
        """Dispatches n times and waits.

        Args:
            method: one of ``METHODS``.
            delay: microseconds that the host is kept busy in each dispatch, to see that it is measured.
            timestamps: whether the GPU measures too, which costs time itself; the device must have ``timestamps``.

        Raises:
            WebGPUError: for whatever the library complained of meanwhile.
        """
        number = METHODS.index(method)
        self.dispatched += n
        wall, host, gpu, dropped, step = _C.run_loop(self._loop, number, n, delay * 1e3, timestamps)
        self.device.check(method)
        if number <= METHODS.index(UNWAITED):
            host -= n * self.device.clock_ns
        return Sample(wall / 1e3, host / 1e3, gpu / 1e3 if timestamps else None, dropped, step)

    def phases(self, n: int) -> dict[str, float]:
        """Microseconds of each of ``names.PHASE_ORDER`` in n sequential dispatches, less the clock's own cost."""
        self.dispatched += n
        spent = _C.run_phases(self._loop, n)
        self.device.check("phases")
        return {name: (ns - n * self.device.clock_ns) / 1e3 for name, ns in zip(PHASE_ORDER, spent, strict=True)}

    def words(self) -> array[int]:
        """The buffer that dispatches count in."""
        words = array("I")
        words.frombytes(_C.read_loop(self._loop))
        self.device.check("reading back")
        return words

    def verify(self) -> None:
        """Raises WebGPUError unless every dispatch has run once; does nothing on the null driver."""
        if not self.device.computes:
            return
        found, wanted = set(self.words()), self.dispatched % 2**32
        if found != {wanted}:
            seen = ", ".join(map(str, sorted(found)[:4]))
            raise WebGPUError(f"{self.kernel}: {wanted} dispatches were made, but the kernel counted {seen}")
