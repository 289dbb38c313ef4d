"""``torch-webgpu bench overhead``: where the time of one tensor op, and of one decode step, goes.

The same work is done from the inside out, n times with one wait, and the slopes over n are compared (``report.stacks``):

- ``calls alone``: C++ loops that make the calls to the library which the work needs, on buffers of their own. On
  ``dawn-null`` that is the API alone; elsewhere it is the API and the driver.
- ``from C++``: the op through PyTorch's dispatcher and the C++ core, called by a C++ loop; a step's plan, replayed.
- ``from Python``: each op, or step, by its Python call.

Time is taken until the calls have returned (``host``), until all is encoded and submitted (``submitted``) and until all is
done (``wall``); ``gpu`` is between the timestamps at the ends of the passes. A sample is one submit: recording, encoding and
the GPU's work come one after the other, so that the layers add up to the whole. ``overlapped`` is a stream of work, where
the three go on at once.

CUDA's stack is made of launches from Python, from C++ and by a CUDA graph; the processor's of the first two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .cells import Cell, measure
from .names import (
    CALLS_ALONE,
    CUDA_GRAPH,
    FROM_CPP,
    FROM_PYTHON,
    GPU,
    HOST,
    ONE_PASS,
    OVERLAPPED,
    STAGE_ORDER,
    STAGES,
    SUBMITTED,
    WALL,
)
from .targets import torch_target, webgpu_target

if TYPE_CHECKING:
    import torch

    from .loop import Device, Kernel, Loop
    from .session import Session, Sink

COUNTS, QUICK_COUNTS = (10, 100, 300, 900), (10, 100, 300)
LONG_COUNTS, QUICK_LONG_COUNTS = (128, 384, 1024), (128, 256, 512)  # whole submits, so that they overlap
GRAPH_COUNTS = (1, 10, 100)
MOST_IN_A_SUBMIT = 1000  # launches; the core takes up to 1024 uniform slots
DEFAULT_MODEL = "tiny"


@dataclass(frozen=True)
class Op:
    """A tensor op.

    Attributes:
        bindings: of its kernel's storage buffers.
        arguments: of the schema, where ``x`` and ``y`` stand for tensors [16, 16].
    """

    name: str
    schema: str
    overload: str
    arguments: tuple[str | float, ...]
    bindings: int
    python: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


OPS = (
    Op("x + 1.0", "aten::add", "Scalar", ("x", 1.0, 1), 2, lambda x, y: x + 1.0),
    Op("x + y", "aten::add", "Tensor", ("x", "y", 1), 3, lambda x, y: x + y),
    Op("x @ y", "aten::mm", "", ("x", "y"), 3, lambda x, y: x @ y),
)


def overhead(session: Session, implementations: Sequence[str] = (), model: str = DEFAULT_MODEL) -> None:
    """Measures everything that is installed here, the processor and CUDA too.

    Args:
        implementations: as in ``dispatch``; given, neither the processor nor CUDA is measured.
        model: of the decode step, one of ``models.SHAPES``, with random weights.
    """
    from .dispatch import environment, places
    from .places import missing

    for name, index, title in places(session, implementations):
        request = {"implementation": name, "adapter": index, "title": title, "model": model}
        session.work("overhead:measure_place", request, environment(name, index))
    for device in ("cpu", "cuda"):
        if not implementations and not missing(device):  # without CUDA there is nothing to set beside, and nothing to tell
            session.work("overhead:measure_torch", {"device": device, "title": f"torch on {device}", "model": model}, {})


def measure_place(request: Mapping[str, Any], sink: Sink) -> None:
    """One adapter of one implementation; runs in a process of its own."""
    from .dispatch import open_tensors
    from .loop import Device, adapter_of
    from .overhead_step import step_cells

    device = Device(adapter_of(request["implementation"], request["adapter"]))
    open_tensors(device)
    target, title = sink.target(webgpu_target(device.adapter)), request["title"]
    if device.computes and not device.timestamps:
        sink.note(f"{title}: the adapter has no timestamp queries, so GPU and queue are one layer")
    loops, cells = [], []
    for op in ops_of(sink.quick):
        loop, found = calls_alone(device, op.name, op.bindings, counts(sink.quick))
        loops.append(loop)
        cells += [
            *found,
            *_op_cells("webgpu", op, sink.quick, device.computes),
            *_overlapped_cells(op, sink.quick),
            _stages(op),
        ]
        if device.timestamps:
            way = _ways("webgpu", op)[FROM_CPP]
            cells += [gpu_cell(op.name, n, partial(way, n)) for n in counts(sink.quick)]
    measure(sink, "overhead", target, cells, f"{title}: ops")
    step_loop, cells = step_cells(device, request["model"], sink)
    measure(sink, "overhead", target, cells, f"{title}: decode step")
    for each in (*loops, step_loop):
        each.verify()


def measure_torch(request: Mapping[str, Any], sink: Sink) -> None:
    """One of PyTorch's own devices; runs in a process of its own."""
    from .overhead_step import cuda_step_cells

    device, title, ops = request["device"], request["title"], ops_of(sink.quick)
    target = sink.target(torch_target(device))
    cells = [cell for op in ops for cell in _op_cells(device, op, sink.quick, True)]
    if device == "cuda":
        cells += [_graph_cell(op, n) for op in ops for n in GRAPH_COUNTS]
    measure(sink, "overhead", target, cells, f"{title}: ops")
    if device == "cuda":
        measure(sink, "overhead", target, cuda_step_cells(request["model"], sink.quick), f"{title}: decode step")


def ops_of(quick: bool) -> tuple[Op, ...]:
    """The ops that are measured."""
    return OPS[:1] if quick else OPS


def counts(quick: bool) -> tuple[int, ...]:
    """The n of what may not overlap."""
    return QUICK_COUNTS if quick else COUNTS


# ---------------------------------------------------------------------------------------------------- parts of a sample


@contextmanager
def one_submit() -> Iterator[None]:
    """Inside, what is recorded is submitted by ``_C.drain`` or a wait, so that encoding and the GPU's work come after it."""
    from .. import _C

    _C.hold_submits(True)
    try:
        yield
    finally:
        _C.hold_submits(False)


def staged(run: Callable[[], object]) -> dict[str, float]:
    """Microseconds of work on webgpu tensors that is one submit: until the calls return, until submitted, until done."""
    from .. import _C
    from .places import wait

    wait("webgpu")
    with one_submit():
        start = time.perf_counter_ns()
        result = run()
        returned = time.perf_counter_ns()
        _C.drain()
        submitted = time.perf_counter_ns()
    wait("webgpu")
    done = time.perf_counter_ns()
    del result  # not while the clock runs
    return {HOST: (returned - start) / 1e3, SUBMITTED: (submitted - start) / 1e3, WALL: (done - start) / 1e3}


def gpu_cell(workload: str, n: int, run: Callable[[], object], ready: Callable[[], object] = lambda: None) -> Cell:
    """The same by the GPU's timestamps, which cost time themselves and so are taken apart.

    Args:
        ready: called before each sample.
    """
    from .. import _C

    lost = [0]

    def measured() -> dict[str, float]:
        ready()
        _C.time_passes(True)
        with one_submit():
            run()
            _C.drain()
        ns, _, dropped, untimed = _C.time_passes(False)
        lost[0] += dropped + untimed
        return {GPU: ns / 1e3}

    def notes() -> list[str]:
        return [f"{lost[0]} passes without usable timestamps are not in the sums"] if lost[0] else []

    return Cell(workload, FROM_CPP, {"n": n}, (GPU,), measured, notes=notes)


def calls_alone(
    device: Device, workload: str, bindings: int, n: Sequence[int], each: int = 1, pipelines: int = 1
) -> tuple[Loop, list[Cell]]:
    """The loop of calls that ``n`` times the work make, and its cells.

    Args:
        bindings: storage buffers of a dispatch; beside them there is a uniform with a dynamic offset, as in the core.
        each: dispatches of the work.
        pipelines: different ones, taken in turn.
    """
    from .loop import Kernel, Loop

    kernel: Kernel = Kernel(bindings=bindings, uniform=True, pipelines=pipelines)
    loop = Loop(device, kernel)

    def run(n: int) -> dict[str, float]:
        sample = loop.run(ONE_PASS, n * each)
        return {WALL: sample.wall, HOST: sample.host}

    return loop, [Cell(workload, CALLS_ALONE, {"n": i}, (WALL, HOST), partial(run, i)) for i in n]


# ---------------------------------------------------------------------------------------------------- ops


def _tensors(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    return torch.full((16, 16), 2.0, device=device), torch.full((16, 16), 3.0, device=device)


def _ways(device: str, op: Op) -> dict[str, Callable[[int], object]]:
    """Calls of the op n times, from C++ and from Python, on tensors of their own."""
    import torch

    from .. import _C

    x, y = _tensors(device)
    tensors = {"x": x, "y": y}
    arguments = [tensors[a] if isinstance(a, str) else a for a in op.arguments]

    def from_python(n: int) -> None:
        call = op.python
        with torch.inference_mode():
            for _ in range(n):
                call(x, y)

    return {FROM_CPP: lambda n: _C.run_op(op.schema, op.overload, arguments, n), FROM_PYTHON: from_python}


def _op_cells(device: str, op: Op, quick: bool, check: bool) -> list[Cell]:
    """From C++ and from Python.

    Args:
        check: whether the device computes: its result is looked at once.

    Raises:
        WebGPUError: where the result is wrong.
    """
    import torch

    from ..errors import WebGPUError
    from .torch_cells import timed

    found, wanted = op.python(*_tensors(device)).cpu(), op.python(*_tensors("cpu"))
    if check and not torch.allclose(found, wanted):
        raise WebGPUError(f"{op.name} gave {found.flatten()[:4].tolist()}… instead of {wanted[0, 0]}")
    time_it, metrics = (staged, (HOST, SUBMITTED, WALL)) if device == "webgpu" else (partial(timed, device), (HOST, WALL))

    def cell(method: str, way: Callable[[int], object], n: int) -> Cell:
        return Cell(op.name, method, {"n": n}, metrics, lambda: time_it(lambda: way(n)))

    return [cell(method, way, n) for n in counts(quick) for method, way in _ways(device, op).items()]


def _overlapped_cells(op: Op, quick: bool) -> list[Cell]:
    from .torch_cells import timed

    call = _ways("webgpu", op)[FROM_PYTHON]

    def cell(n: int) -> Cell:
        return Cell(op.name, OVERLAPPED, {"n": n}, (WALL, HOST), lambda: timed("webgpu", lambda: call(n)))

    return [cell(n) for n in (QUICK_LONG_COUNTS if quick else LONG_COUNTS)]


def _stages(op: Op) -> Cell:
    """What the C++ core does in a call, by its own counters, which cost about 25 ns each."""
    from .. import _C
    from .places import wait

    call = _ways("webgpu", op)[FROM_PYTHON]

    def run() -> dict[str, float]:
        wait("webgpu")
        _C.profile(True)
        _C.reset_stats()
        call(QUICK_LONG_COUNTS[0])
        stats = _C.stats()
        _C.profile(False)
        return {stage: stats[f"{stage}_ns"] / stats["launches"] / 1e3 for stage in STAGE_ORDER}

    call(1)
    return Cell(op.name, STAGES, {}, STAGE_ORDER, run)


def _graph_cell(op: Op, n: int) -> Cell:
    import torch

    from .torch_cells import timed

    x, y = _tensors("cuda")
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm on a stream of its own, as capturing wants it
            op.python(x, y)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [op.python(x, y) for _ in range(n)]
    graph.replay()
    if not torch.allclose(found := results[-1].cpu(), op.python(*_tensors("cpu"))):
        raise RuntimeError(f"a CUDA graph of {op.name} gave {found.flatten()[:4].tolist()}…")

    def replay() -> object:
        graph.replay()
        return x, y, results  # which the graph reads and writes, and does not keep

    return Cell(op.name, CUDA_GRAPH, {"n": n}, (WALL, HOST), partial(timed, "cuda", replay))


def closest(values: Sequence[int]) -> int:
    """Their mean as a whole number; 1 for none."""
    return max(1, math.floor(sum(values) / len(values) + 0.5)) if values else 1
