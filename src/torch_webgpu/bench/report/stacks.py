"""Whose microseconds those of a tensor op or a decode step are: layers as differences of slopes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..names import (
    API,
    API_AND_DRIVER,
    CALLS_ALONE,
    CPP,
    CPP_AND_DRIVER,
    CPP_AND_PYTHON,
    CUDA_GRAPH,
    DECODE_STEP,
    DEVICE,
    DEVICE_AND_QUEUE,
    DRIVER,
    FROM_CPP,
    FROM_PYTHON,
    GPU,
    HOST,
    OVERLAPPED,
    PYTHON,
    QUEUE,
    SUBMITTED,
    WALL,
)
from ..results import Results, Source
from .document import Estimate
from .lines import Sweep, sweeps


@dataclass(frozen=True)
class Part:
    """One layer's µs.

    Attributes:
        how: what it is the difference of.
    """

    layer: str
    estimate: Estimate
    how: str

    @property
    def told(self) -> bool:
        """Whether the layer is told from nothing: its interval leaves 0 out."""
        return self.estimate.low > 0 or self.estimate.high < 0

    @property
    def verdict(self) -> str:
        """What a value at or below 0 means; empty above."""
        if not self.told:
            return "no difference within the interval"
        return "negative: the two figures contradict each other" if self.estimate.high < 0 else ""


@dataclass(frozen=True)
class Stack:
    """The layers of one op's, or one step's, time on one source.

    Attributes:
        parts: from the hardware up.
        whole: the time that they add up to.
        threads: µs of the main thread, the encoding thread and the GPU, which go on at once in a stream of work.
        overlapped: what one more takes in such a stream.
    """

    source: Source
    workload: str
    parts: list[Part]
    whole: Estimate
    threads: dict[str, Estimate] = field(default_factory=dict)
    overlapped: Estimate | None = None

    @property
    def is_step(self) -> bool:
        """Whether it is of a decode step."""
        return self.workload.startswith(DECODE_STEP)

    def part(self, layer: str) -> Estimate:
        """A layer's µs; KeyError for one that is not told apart here."""
        for part in self.parts:
            if part.layer == layer:
                return part.estimate
        raise KeyError(layer)

    def share(self, part: Part) -> float:
        """Part of all positive layers."""
        total = sum(max(p.estimate.value, 0) for p in self.parts)
        return max(part.estimate.value, 0) / total if total else 0.0

    def share_text(self, part: Part) -> str:
        """The same in percent; none for what is not told from nothing."""
        return f"{100 * self.share(part):.0f} %" if part.estimate.value > 0 and part.told else "–"

    @property
    def balance(self) -> Estimate | None:
        """Host's time ÷ the GPU's: above 1 the GPU waits for the host. The host's is its busier thread's."""
        gpu = self.threads.get(DEVICE)
        hosts = [e for name, e in self.threads.items() if name != DEVICE]
        if gpu is None or gpu.low <= 0 or not hosts:
            return None
        host = max(hosts, key=lambda e: e.value)
        return Estimate(host.value / gpu.value, host.low / gpu.high, host.high / gpu.low, min(host.n, gpu.n), "ratio")

    @property
    def verdict(self) -> str:
        """What bounds a stream of such work; empty where the GPU was not timed."""
        ratio = self.balance
        if ratio is None:
            return ""
        return "the host" if ratio.low > 1 else "the GPU" if ratio.high < 1 else "neither"

    def balance_text(self) -> str:
        """The balance in words; empty where the GPU was not timed."""
        if self.balance is None:
            return ""
        threads = ", ".join(f"{name} {e.text}" for name, e in self.threads.items())
        stream = f"; one more in a stream: {self.overlapped.text}" if self.overlapped else ""
        return f"Host ÷ GPU: {self.balance.text}, bound by {self.verdict}; {threads}{stream}"


MAIN, ENCODING = "main thread", "encoding thread"


def stacks(results: Results) -> list[Stack]:
    """Of every op and step that was measured, ops first."""
    by_place: dict[tuple[Source, str], dict[str, Sweep]] = {}
    for sweep in sweeps(results, "overhead"):
        by_place.setdefault((sweep.source, sweep.workload), {})[sweep.method] = sweep
    found = []
    for (source, workload), methods in by_place.items():
        if source.target.adapter_kind == "null" or FROM_PYTHON not in methods:
            continue
        if source.target.kind == "webgpu":
            null = next((m for (s, w), m in by_place.items() if w == workload and _is_null_of(s, source)), {})
            stack = _webgpu(source, workload, methods, null.get(CALLS_ALONE))
        else:
            stack = _launches(source, workload, methods)
        if stack is not None:
            found.append(stack)
    return sorted(found, key=lambda s: s.is_step)


def _is_null_of(null: Source, source: Source) -> bool:
    """Whether one is the driver that does nothing of the other's library, on the same machine."""
    a, b = null.target, source.target
    same = (a.version, null.machine, null.imported) == (b.version, source.machine, source.imported)
    return a.adapter_kind == "null" and a.implementation.startswith(b.implementation) and same


def less(a: Estimate, b: Estimate) -> Estimate:
    """The difference; its interval takes the worst corners."""
    return Estimate(a.value - b.value, a.low - b.high, a.high - b.low, min(a.n, b.n), a.unit)


def plus(a: Estimate, b: Estimate) -> Estimate:
    """The sum, likewise."""
    return Estimate(a.value + b.value, a.low + b.low, a.high + b.high, min(a.n, b.n), a.unit)


def _webgpu(source: Source, workload: str, methods: dict[str, Sweep], null: Sweep | None) -> Stack | None:
    """The layers add up to the wall time from Python."""
    python, cpp, alone = methods[FROM_PYTHON], methods.get(FROM_CPP), methods.get(CALLS_ALONE)
    wall, submitted, host = (python.slope(m) for m in (WALL, SUBMITTED, HOST))
    calls, from_cpp = alone.slope(HOST) if alone else None, cpp.slope(HOST) if cpp else None
    if not (wall and submitted and host and calls and from_cpp and cpp):
        return None
    parts = _waiting(less(wall, submitted), cpp.slope(GPU))
    if null and (api := null.slope(HOST)):
        parts.append(Part(DRIVER, less(calls, api), "calls alone: this driver − one that does nothing"))
        parts.append(Part(API, api, "calls alone, on a driver that does nothing"))
    else:
        parts.append(Part(API_AND_DRIVER, calls, "calls alone"))
    encoding = less(submitted, host)
    core = less(plus(from_cpp, encoding), calls)
    parts.append(Part(CPP, core, "calls from C++ + encoding and submitting − calls alone"))
    parts.append(Part(PYTHON, less(host, from_cpp), "calls from Python − calls from C++"))
    threads = {MAIN: host, ENCODING: encoding}
    if gpu := cpp.slope(GPU):
        threads[DEVICE] = gpu
    stream = methods[OVERLAPPED].slope() if OVERLAPPED in methods else None
    return Stack(source, workload, parts, wall, threads=threads, overlapped=stream)


def _waiting(wait: Estimate, gpu: Estimate | None) -> list[Part]:
    if gpu is None:
        return [Part(DEVICE_AND_QUEUE, wait, "until done − until submitted")]
    return [
        Part(DEVICE, gpu, "timestamps at the ends of the passes"),
        Part(QUEUE, less(wait, gpu), "until done − until submitted − GPU"),
    ]


def _launches(source: Source, workload: str, methods: dict[str, Sweep]) -> Stack | None:
    """Of devices whose launches overlap with their work: what is left as one layer after the other is taken away."""
    wall = {name: s.slope(WALL) for name, s in methods.items() if name in (FROM_PYTHON, FROM_CPP, CUDA_GRAPH)}
    python, cpp, graph = (wall.get(name) for name in (FROM_PYTHON, FROM_CPP, CUDA_GRAPH))
    if not python:
        return None
    parts = []
    if graph:
        parts.append(Part(DEVICE, graph, "one more in a CUDA graph"))
    if cpp and graph:
        parts.append(Part(CPP_AND_DRIVER, less(cpp, graph), "from C++ − in a CUDA graph"))
    elif cpp:
        parts.append(Part(CPP_AND_DRIVER, cpp, "from C++, with the work itself"))
    if cpp:
        parts.append(Part(PYTHON, less(python, cpp), "from Python − from C++"))
    elif graph:
        parts.append(Part(CPP_AND_PYTHON, less(python, graph), "launched from Python − in a CUDA graph, the same kernels"))
    return Stack(source, workload, parts, python) if len(parts) > 1 else None
