"""``torch-webgpu bench dispatch``: what one dispatch costs, by every way to make it, on every implementation and adapter.

A sample is the time of n dispatches. Its line over n separates what a dispatch costs (slope) from what a wait costs
(intercept): a quotient at one n has both in it. All ways use the same kernel, whose work is checked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .cells import Cell, measure
from .names import GPU, HOST, INCREMENT, ONE_PASS, PASSES, PHASE_ORDER, PHASES, READ_BACK, SEQUENTIAL, UNWAITED, WAITED, WALL
from .targets import NULL, webgpu_target

if TYPE_CHECKING:
    from .loop import Device, Kernel, Loop
    from .session import Session, Sink

COUNTS, QUICK_COUNTS = (1, 3, 10, 30, 100, 300, 1000), (1, 10, 100, 300)
WAITED_COUNTS, QUICK_WAITED_COUNTS = (1, 3, 10), (1, 2, 4)
PLAN_COUNTS, QUICK_PLAN_COUNTS = (1, 10, 30, 100, 300), (1, 10, 100)
SWEPT_COUNTS = (10, 30, 100)
#: What else a dispatch's cost may depend on.
SWEEPS: dict[str, tuple[int, ...]] = {"bindings": (2, 4, 8), "workgroups": (1, 64, 1024), "pipelines": (2, 8, 32)}
_GAPS_MS = (0, 10, 100, 1000)
_PHASES_OF = 100


def dispatch(session: Session, implementations: Sequence[str] = ()) -> None:
    """Measures everything that is installed here.

    Args:
        implementations: ``wgpu``, ``dawn``, ``dawn-null``; all unless given.
    """
    for name, index, title in places(session, implementations):
        request = {"implementation": name, "adapter": index, "title": title}
        session.work("dispatch:measure_place", request, environment(name, index))


def environment(implementation: str, index: int) -> dict[str, str]:
    """Variables of a process that measures an adapter."""
    library = implementation.partition("-")[0]
    return {"TORCH_WEBGPU_IMPL": library, "TORCH_WEBGPU_ADAPTER": str(index), "TORCH_WEBGPU_CACHE": "off"}


def places(session: Session, implementations: Sequence[str] = ()) -> list[tuple[str, int, str]]:
    """Implementation, adapter's index and title of all there are; the session is told what is missing and why."""
    from ..diagnostics import IMPLEMENTATIONS, probe_all

    session.progress("Asking for adapters…")
    found: list[tuple[str, int, str]] = []
    facts = probe_all(name for name in IMPLEMENTATIONS if not implementations or name in implementations)
    for name, known in facts.items():
        for text in (known["advice"], known["error"]):
            if text:
                session.note(f"{name}: {text}")
        found += [(name, a["index"], f"{name} on {a['name']} ({a['backend']})") for a in known["adapters"]]
    if NULL in implementations or (not implementations and facts["dawn"]["installed"]):
        found.append((NULL, 0, "Dawn's null driver"))
    return found


def measure_place(request: Mapping[str, Any], sink: Sink) -> None:
    """One adapter of one implementation; runs in a process of its own."""
    from .loop import Device, adapter_of

    adapter = adapter_of(request["implementation"], request["adapter"])
    device, title = Device(adapter), request["title"]
    target = sink.target(webgpu_target(adapter))
    _methods(sink, device, target, title)
    _gpu(sink, device, target, title)
    _phases(sink, device, target, title)
    _sweeps(sink, device, target, title)
    _gaps(sink, device, target, title)


def _cell(
    loop: Loop,
    method: str,
    n: int,
    parameters: Mapping[str, Any] | None = None,
    metrics: tuple[str, ...] = (WALL, HOST),
) -> Cell:
    def run() -> dict[str, float]:
        sample = loop.run(method, n)
        return {metric: getattr(sample, metric) for metric in metrics}

    return Cell(INCREMENT, method, {**(parameters or {}), "n": n}, metrics, run)


def counts(method: str, quick: bool) -> tuple[int, ...]:
    """The n of a method: few where each dispatch is waited for."""
    if method in (WAITED, READ_BACK):
        return QUICK_WAITED_COUNTS if quick else WAITED_COUNTS
    return QUICK_COUNTS if quick else COUNTS


def _methods(sink: Sink, device: Device, target: int, title: str) -> None:
    from .loop import METHODS, Loop
    from .torch_cells import eager_cells, plan_cells
    from .wgpu_py import python_cells

    loop = Loop(device)
    cells = []
    for method in METHODS:
        metrics = (HOST,) if method == UNWAITED else (WALL, HOST)
        cells += [_cell(loop, method, n, metrics=metrics) for n in counts(method, sink.quick)]
    open_tensors(device)
    cells += eager_cells("webgpu", counts("", sink.quick), device.computes)
    cells += plan_cells("webgpu", QUICK_PLAN_COUNTS if sink.quick else PLAN_COUNTS, device.computes)
    if device.adapter.implementation == "wgpu":
        cells += python_cells(device.adapter, counts("", sink.quick))
    measure(sink, "dispatch", target, cells, f"{title}: methods")
    loop.verify()


def open_tensors(device: Device) -> None:
    """Opens the adapter of the measured device for webgpu tensors too, unless they have one."""
    from .. import runtime

    runtime.start((runtime.implementation(device.adapter.implementation), device.adapter))


def _gpu(sink: Sink, device: Device, target: int, title: str) -> None:
    if not device.timestamps:
        if device.computes:
            sink.note(f"{title}: the adapter has no timestamp queries, so there are no times of the GPU itself")
        return
    from .loop import Loop

    loop = Loop(device)
    cells = [
        _timed_cell(loop, method, n)
        for method in (SEQUENTIAL, PASSES, ONE_PASS)
        for n in (QUICK_COUNTS if sink.quick else COUNTS)
    ]
    measure(sink, "dispatch", target, cells, f"{title}: GPU time")
    loop.verify()


def _timed_cell(loop: Loop, method: str, n: int) -> Cell:
    dropped, steps = [0], set()

    def run() -> dict[str, float]:
        sample = loop.run(method, n, timestamps=True)
        dropped[0] += sample.dropped
        steps.add(sample.step)
        assert sample.gpu is not None
        return {GPU: sample.gpu}

    def notes() -> list[str]:
        import math

        found = [f"timestamps at the ends of passes, in steps of {math.gcd(*steps)} ns"]
        if dropped[0]:
            found.append(f"{dropped[0]} passes with a negative difference of timestamps are not in the sums")
        return found

    return Cell(INCREMENT, method, {"n": n}, (GPU,), run, notes=notes)


def _phases(sink: Sink, device: Device, target: int, title: str) -> None:
    from .loop import Loop

    loop = Loop(device)
    note = f"a dispatch's mean over {_PHASES_OF} sequential ones; {device.clock_ns:.1f} ns for reading the clock taken off"

    def run() -> dict[str, float]:
        return {name: spent / _PHASES_OF for name, spent in loop.phases(_PHASES_OF).items()}

    cell = Cell(INCREMENT, PHASES, {}, PHASE_ORDER, run, notes=lambda: [note])
    measure(sink, "dispatch", target, [cell], f"{title}: phases")
    loop.verify()


def _sweeps(sink: Sink, device: Device, target: int, title: str) -> None:
    from .loop import Kernel, Loop

    room = device.handle.limits["maxStorageBuffersPerShaderStage"]
    kernels: list[tuple[dict[str, Any], Kernel]] = [({"uniform": True}, Kernel(uniform=True))]
    more: dict[str, Any]
    for name, values in SWEEPS.items():
        for value in values[-1:] if sink.quick else values:
            if name != "bindings" or value <= room:
                more = {name: value}
                kernels.append((more, Kernel(**more)))
    loops = [(parameters, Loop(device, kernel)) for parameters, kernel in kernels]
    cells = [
        _cell(loop, method, n, parameters)
        for parameters, loop in loops
        for method in (SEQUENTIAL, ONE_PASS)
        for n in SWEPT_COUNTS
    ]
    measure(sink, "dispatch", target, cells, f"{title}: bindings, workgroups, pipelines")
    for _, loop in loops:
        loop.verify()


def _gaps(sink: Sink, device: Device, target: int, title: str) -> None:
    """A dispatch after the device was idle: clocks fall meanwhile."""
    if not device.computes:
        return
    from .loop import Loop

    loop = Loop(device)

    def cell(gap: int) -> Cell:
        def run() -> dict[str, float]:
            time.sleep(gap / 1e3)
            return {WALL: loop.run(WAITED, 1).wall}

        return Cell(INCREMENT, "after an idle gap", {"gap_ms": gap}, (WALL,), run)

    measure(sink, "dispatch", target, [cell(gap) for gap in _GAPS_MS], f"{title}: idle gaps")
    loop.verify()
