"""``bench fusion``: what fewer launches are worth, for the parts of a model, by hand and by the compiler.

Every variant is checked against float64 on the CPU before it is timed, and its dispatches are those that the native core
encoded. Variants of a case are timed in turn, in random order. A sample is microseconds a call, over ``calls`` calls that
are waited for once; ``submits`` says whether a call's dispatches go to the queue together or one by one.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .. import _C
from ..compiler.executor import CompiledGraph, recorded
from ..errors import LimitError
from .cells import Cell
from .cells import measure as sample
from .fusion_cases import Case, WrongResultError, as_one, cases
from .names import APART, DISPATCHES, SUBMITS, TOGETHER, WALL
from .places import missing
from .sampling import Budget
from .schema import Measurement, Parameter, Quantity
from .session import Session, Sink, samples, warmups
from .targets import torch_target

LEVELS = ("none", "pointwise", "full")
MANY, MANY_QUICK = 50, 5  # calls of the mode with one wait for many
_SECONDS, _PRECISION = 0.5, 0.005  # see ``Budget``: what is long in itself gets fewer samples, never below ten
_INTERVAL, _MOST = 64, 1024  # launches a submit: as the device does by itself, and so many that a call is never cut


@dataclass(frozen=True)
class Variant:
    """One way to compute a case.

    Attributes:
        call: launches without waiting (unless the result is the host's) and returns the result.
        replay: whether it is a plan, whose dispatches cannot be submitted one by one.
    """

    name: str
    call: Callable[[], Any]
    replay: bool = False


@dataclass(frozen=True)
class Mode:
    """How calls are timed; see the module."""

    calls: int
    submits: str

    @property
    def parameters(self) -> dict[str, Parameter]:
        """As in the result file."""
        return {"calls": self.calls, "submits": self.submits}


def modes(case: Case, many: int) -> list[Mode]:
    """A call and a wait; the same with a submit a dispatch; many calls and one wait. One that waits itself has the first."""
    if case.returns_index:
        return [Mode(1, TOGETHER)]
    return [Mode(1, TOGETHER), Mode(1, APART), Mode(many, TOGETHER)]


@contextmanager
def submit_interval(launches: int) -> Iterator[None]:
    """Inside, so many launches go to the queue at once."""
    _C.set_submit_interval(launches)
    try:
        yield
    finally:
        _C.set_submit_interval(_INTERVAL)


# ---------------------------------------------------------------------------------------------------- variants


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under a code object of its own: what Dynamo compiled for another variant does not count against it."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace()
    return types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def plan_of(function: Callable[..., Any], tensors: dict[str, torch.Tensor], level: str) -> tuple[CompiledGraph, list[Any]]:
    """The one plan that a function becomes at a level of fusion, and its inputs.

    Raises:
        RuntimeError: where it becomes several, or none.
    """
    torch._dynamo.reset()
    compiled = torch.compile(fresh(function), backend="webgpu", fullgraph=True, options={"fusion": level})
    with torch.no_grad(), recorded() as calls:
        compiled(**tensors)
    if len(calls) != 1 or calls[0][0].degraded:
        raise RuntimeError(f"at fusion {level} this became {len(calls)} graphs, not one plan")
    return calls[0]


def on_device(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the webgpu device."""
    return {name: t.to("webgpu") for name, t in tensors.items()}


def variants(case: Case, absent: Callable[[str, str], None]) -> list[Variant]:
    """What can be timed on the webgpu device; ``absent`` is told of the rest, and why."""
    tensors = on_device(case.inputs)
    hand = on_device(case.by_hand_inputs or case.inputs)
    found = []
    for name, make in case.chains.items():
        try:
            found.append(Variant(name, partial(make(), **hand)))
        except LimitError as e:
            absent(name, str(e))
    for name, function in {"eager": case.function, **case.others}.items():
        found.append(Variant(name, lambda f=function: f(**tensors)))  # type: ignore[misc]
    for level in LEVELS if case.levels else ():
        graph, inputs = plan_of(case.function, on_device(case.inputs), level)  # it may lay weights out side by side
        found.append(Variant(f"compiled, {level}", lambda g=graph, i=inputs: tuple(g.run(list(i))), True))  # type: ignore[misc]
    if case.levels:  # and once with what Dynamo's checks of its arguments cost
        compiled = torch.compile(fresh(case.function), backend="webgpu", fullgraph=True, options={"fusion": "full"})
        own = on_device(case.inputs)
        found.append(Variant("torch.compile, full", lambda: compiled(**own), True))
    return found


def cuda_variants(case: Case) -> list[Variant]:
    """The controls on CUDA: op by op, and through Inductor."""
    tensors = {name: t.to("cuda") for name, t in case.inputs.items()}
    found = [
        Variant(name, lambda f=function: f(**tensors))  # type: ignore[misc]
        for name, function in {"eager": case.function, **case.others}.items()
    ]
    if case.levels:
        torch._dynamo.reset()
        for name, mode in (("torch.compile", "default"), ("torch.compile, reduce-overhead", "reduce-overhead")):
            compiled = torch.compile(fresh(case.function), fullgraph=True, mode=mode)
            found.append(Variant(name, lambda c=compiled: c(**tensors), True))  # type: ignore[misc]
    return found


# ---------------------------------------------------------------------------------------------------- checks and counts


def check(case: Case, name: str, result: Any, expected: torch.Tensor) -> None:
    """Raises WrongResultError where a result differs from the float64 one by more than the case allows."""
    got = as_one(result).double().reshape(expected.shape)
    largest = float(expected.abs().max())
    difference = float((got - expected).abs().max())
    if not difference <= case.tolerance * max(largest, 1e-30):
        raise WrongResultError(
            f"{case.title}, {name}: differs from the CPU's by {difference:.3g} where values reach {largest:.3g}; "
            "a variant that computes something else is not timed"
        )


def counted(call: Callable[[], Any]) -> tuple[int, int]:
    """Dispatches that the native core encodes for a call, and the submits that they go in (without that of a wait)."""
    _C.synchronize()
    _C.drain()
    before = _C.stats()
    call()
    _C.flush()
    _C.drain()
    after = _C.stats()
    return after["encoded"] - before["encoded"], after["submits"] - before["submits"]


def cuda_kernels(call: Callable[[], Any]) -> int:
    """Kernels that a call launches on CUDA, as the profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    kinds = [e for e in seen.events() or [] if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not e.name.startswith(("Memcpy", "Memset")) for e in kinds)


# ---------------------------------------------------------------------------------------------------- measuring


class FusionBench:
    """Measures cases; what is there already is left as it is."""

    def __init__(self, sink: Sink, many: int, budget: Budget | None = None) -> None:
        """
        Args:
            many: calls of the mode with one wait for many.
            budget: see ``cells.measure``.
        """
        self._sink, self._many, self._budget = sink, many, budget

    def run(self, case: Case, target: int, kind: str = "webgpu", title: str = "") -> None:
        """Checks, counts and times every variant of a case on a target; ``title`` is what progress calls it.

        Raises:
            WrongResultError: for a variant with a wrong result; what was measured of the others before stays.
        """
        with torch.no_grad():
            found = variants(case, partial(self._absent, case)) if kind == "webgpu" else cuda_variants(case)
            expected = case.expected()
            for variant in found:
                check(case, variant.name, variant.call(), expected)
                self._count(case, variant, target, kind)
            for mode in modes(case, self._many):
                if kind != "webgpu" and mode.submits == APART:
                    continue
                self._time(case, found, mode, target, kind, title or case.title)

    def _absent(self, case: Case, method: str, reason: str) -> None:
        self._sink.note(f"{case.title}, {method}: {reason}")

    def _count(self, case: Case, variant: Variant, target: int, kind: str) -> None:
        def about(metric: str) -> Quantity:
            return Quantity(
                experiment="fusion",
                workload=case.name,
                method=variant.name,
                target=target,
                parameters=dict(case.parameters),
                metric=metric,
            )

        if self._sink.has(about(DISPATCHES)):
            return
        if kind == "webgpu":
            with submit_interval(_MOST):
                dispatches, submits = counted(variant.call)
            self._keep(about(SUBMITS), submits)
            self._keep(about(DISPATCHES), dispatches)
        else:
            self._keep(about(DISPATCHES), cuda_kernels(variant.call), "kernels, as the profiler counts them")

    def _time(self, case: Case, found: Sequence[Variant], mode: Mode, target: int, kind: str, title: str) -> None:
        parameters = {**case.parameters, **mode.parameters}
        work = case.work()
        cells = [
            Cell(case.name, v.name, parameters, (WALL,), self._sampler(v, mode, kind), work=work)
            for v in found
            if not (v.replay and mode.submits == APART)
        ]
        with submit_interval(1 if mode.submits == APART else _MOST):
            sample(self._sink, "fusion", target, cells, title, self._budget)

    def _sampler(self, variant: Variant, mode: Mode, kind: str) -> Callable[[], dict[str, float]]:
        wait = _C.synchronize if kind == "webgpu" else torch.cuda.synchronize
        flush = _C.flush if kind == "webgpu" else lambda: None
        call, calls = variant.call, mode.calls

        def once() -> dict[str, float]:
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                call()
                flush()
            wait()
            return {WALL: (time.perf_counter() - start) / calls * 1e6}

        return once

    def _keep(self, quantity: Quantity, count: int, *notes: str) -> None:
        self._sink.add(Measurement(**quantity.model_dump(), unit="count", samples=[float(count)], notes=list(notes)))


def run_all(session: Session, implementations: Sequence[str], only: str = "") -> None:
    """Measures all cases on each implementation of WebGPU and on CUDA, each in a process of its own."""
    request = {"only": only}
    for name in implementations:
        more = {"kind": "webgpu", "title": f"fusion on {name}"}
        session.work("fusion:measure", request | more, {"TORCH_WEBGPU_IMPL": name})
    if (why := missing("cuda")) is not None:
        session.note(f"no control on CUDA: {why}")
    else:
        session.work("fusion:measure", request | {"kind": "cuda", "title": "fusion on CUDA"}, {})


def measure(request: dict[str, Any], sink: Sink) -> None:
    """All cases on one device; for ``worker``."""
    kind = request["kind"]
    place = torch_target(kind)
    target, small = sink.target(place), place.adapter_kind == "cpu"
    made = [case for make in cases(sink.quick, small) if request["only"] in (case := make()).name]
    budget = Budget(warmups(sink.quick), samples(sink.quick), seconds=_SECONDS, precision=_PRECISION)
    bench = FusionBench(sink, MANY_QUICK if sink.quick else MANY, budget)
    for i, case in enumerate(made):
        try:
            bench.run(case, target, kind, f"{request['title']}: {case.title} ({i + 1} of {len(made)})")
        except WrongResultError as e:
            sink.note(str(e))
