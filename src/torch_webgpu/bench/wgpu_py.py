"""The same loops through wgpu-py: wgpu-native's library called from Python, so that Python's share is seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import wgpu

from ..errors import WebGPUError
from ..runtime.base import AdapterInfo
from .cells import Cell
from .loop import WORKGROUP, Kernel
from .names import HOST, INCREMENT, ONE_PASS, PASSES, SEQUENTIAL, WALL

PREFIX = "wgpu-py: "
_KERNEL = Kernel()


class PythonLoop:
    """The kernel of ``loop.Kernel()`` on a device made with wgpu-py."""

    def __init__(self, adapter: AdapterInfo) -> None:
        """Raises WebGPUError where wgpu-py does not find the adapter."""
        found = [
            a
            for a in wgpu.gpu.enumerate_adapters_sync()
            if (a.info["device"], a.info["backend_type"]) == (adapter.name, adapter.backend)
        ]
        if not found:
            raise WebGPUError(f"wgpu-py does not list {adapter.name} ({adapter.backend})")
        self.device: Any = found[0].request_device_sync()
        layout = self.device.create_bind_group_layout(
            entries=[{"binding": 0, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": "storage"}}]
        )
        size = _KERNEL.workgroups * WORKGROUP * 4
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self.buffer = self.device.create_buffer(size=size, usage=usage)
        binding = {"binding": 0, "resource": {"buffer": self.buffer, "offset": 0, "size": size}}
        self.group = self.device.create_bind_group(layout=layout, entries=[binding])
        module = self.device.create_shader_module(code=_KERNEL.code(0))
        self.pipeline = self.device.create_compute_pipeline(
            layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": "main"},
        )
        self.dispatched = 0

    def _pass(self, encoder: Any, dispatches: int) -> None:
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self.pipeline)
        for _ in range(dispatches):
            compute.set_bind_group(0, self.group)
            compute.dispatch_workgroups(_KERNEL.workgroups)
        compute.end()

    def sequential(self, n: int) -> None:
        """n encoders and submits."""
        for _ in range(n):
            encoder = self.device.create_command_encoder()
            self._pass(encoder, 1)
            self.device.queue.submit([encoder.finish()])

    def passes(self, n: int) -> None:
        """n passes in one submit."""
        encoder = self.device.create_command_encoder()
        for _ in range(n):
            self._pass(encoder, 1)
        self.device.queue.submit([encoder.finish()])

    def one_pass(self, n: int) -> None:
        """n dispatches in one pass."""
        encoder = self.device.create_command_encoder()
        self._pass(encoder, n)
        self.device.queue.submit([encoder.finish()])

    def timed(self, way: Callable[[int], None], n: int) -> dict[str, float]:
        """Microseconds: ``host`` until the calls return, ``wall`` until one word was read back."""
        start = time.perf_counter_ns()
        way(n)
        returned = time.perf_counter_ns()
        self.device.queue.read_buffer(self.buffer, 0, 4)
        done = time.perf_counter_ns()
        self.dispatched += n
        return {WALL: (done - start) / 1e3, HOST: (returned - start) / 1e3}

    def verify(self) -> None:
        """Raises WebGPUError unless every dispatch has run once."""
        words = set(self.device.queue.read_buffer(self.buffer).cast("I"))
        if words != {self.dispatched}:
            raise WebGPUError(f"wgpu-py: {self.dispatched} dispatches were made, but the kernel counted {sorted(words)[:4]}")


def python_cells(adapter: AdapterInfo, counts: Sequence[int]) -> list[Cell]:
    """Cells of the ways that need no wait between dispatches."""
    loop = PythonLoop(adapter)
    ways = {SEQUENTIAL: loop.sequential, PASSES: loop.passes, ONE_PASS: loop.one_pass}
    for way in ways.values():
        loop.timed(way, 3)
    loop.verify()
    return [
        Cell(INCREMENT, f"{PREFIX}{name}", {"n": n}, (WALL, HOST), partial(loop.timed, way, n))
        for name, way in ways.items()
        for n in counts
    ]
