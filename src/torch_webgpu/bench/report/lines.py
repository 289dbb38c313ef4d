"""Dispatch costs out of samples over n: slopes, intercepts, and the quotients that others report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..names import (
    EAGER,
    GPU,
    HOST,
    IDLE_WAIT,
    INCREMENT,
    ONE_PASS,
    PASSES,
    PHASES,
    PLAN,
    READ_BACK,
    SEQUENTIAL,
    SUBMITTED,
    UNWAITED,
    WAITED,
    WALL,
)
from ..results import Results, Series, Source
from ..stats import Line, fit_line
from .document import Estimate

ORDER = (WAITED, READ_BACK, UNWAITED, SEQUENTIAL, PASSES, ONE_PASS, EAGER, PLAN)
#: Workloads that a dispatch's own cost is read from, the plainest first.
_PLAIN = (INCREMENT, "empty", "null", "elementwise")


@dataclass
class Sweep:
    """One method on one source with one setting of all parameters but n.

    Attributes:
        by_n: per metric, samples of the time of n dispatches (or ops, or steps) by n, in µs.
    """

    source: Source
    workload: str
    method: str
    setting: tuple[tuple[str, Any], ...]
    by_n: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    interrupted: bool = False

    def line(self, metric: str = WALL) -> Line | None:
        """The line through the medians; None for fewer than three n."""
        groups = self.by_n.get(metric, {})
        return fit_line(groups) if len(groups) >= 3 else None

    def samples(self, metric: str = WALL) -> int:
        """How many there are."""
        return sum(len(s) for s in self.by_n.get(metric, {}).values())

    def slope(self, metric: str = WALL) -> Estimate | None:
        """µs for one dispatch more."""
        line = self.line(metric)
        return Estimate.within(line.slope, line.slope_ci, self.samples(metric), "us") if line else None

    def intercept(self, metric: str = WALL) -> Estimate | None:
        """µs for none: what a wait and the start cost."""
        line = self.line(metric)
        return Estimate.within(line.intercept, line.intercept_ci, self.samples(metric), "us") if line else None

    def quotient(self, n: int, metric: str = WALL) -> Estimate | None:
        """Time of n dispatches divided by n."""
        samples = self.by_n.get(metric, {}).get(n)
        return Estimate.of(samples, "us", per=n) if samples else None

    def near(self, n: int, metric: str = WALL) -> int | None:
        """The n measured that is nearest to this one."""
        return min(self.by_n.get(metric, {}), key=lambda m: abs(m - n), default=None)

    def cost(self, metric: str = WALL) -> Estimate | None:
        """Of one dispatch: the slope where there are three n, else the quotient at the largest n."""
        return self.slope(metric) or self.quotient(max(self.by_n.get(metric) or {0: []}), metric)


def sweeps(results: Results, experiment: str = "dispatch") -> list[Sweep]:
    """All of the files, the best sources first and methods in the order of the instrument."""
    found: dict[Any, Sweep] = {}
    for s in results.find(experiment, unit="us"):
        n = s.parameter("n", 1)
        if (
            s.now.method in (PHASES, IDLE_WAIT)
            or s.now.metric not in (WALL, HOST, SUBMITTED, GPU)
            or not isinstance(n, int)
            or n < 1
        ):
            continue
        setting = tuple(sorted((k, v) for k, v in s.now.parameters.items() if k != "n"))
        key = s.source, s.now.workload, s.now.method, setting
        sweep = found.setdefault(key, Sweep(*key))
        sweep.by_n.setdefault(s.now.metric, {})[n] = s.samples
        sweep.interrupted |= s.interrupted
    return sorted(
        found.values(), key=lambda s: (s.source.rank, _at(_PLAIN, s.workload), _at(ORDER, s.method), str(s.setting))
    )


def plain(found: Iterable[Sweep]) -> list[Sweep]:
    """One a method and source: the plainest workload that has most methods there, in its most measured setting.

    These are what a dispatch itself costs; the others vary something.
    """
    best: dict[tuple[Source, str, str], Sweep] = {}
    for s in found:
        key = s.source, s.workload, s.method
        weight = s.samples(), -len(s.setting)
        if key not in best or weight > (best[key].samples(), -len(best[key].setting)):
            best[key] = s
    chosen = []
    for source in dict.fromkeys(key[0] for key in best):
        workloads = dict.fromkeys(key[1] for key in best if key[0] == source)
        methods = {w: {key[2] for key in best if key[:2] == (source, w)} for w in workloads}
        main = max(workloads, key=lambda w: (SEQUENTIAL in methods[w], w in _PLAIN, len(methods[w])))
        chosen += [best[source, main, m] for m in sorted(methods[main], key=lambda m: _at(ORDER, m))]
        others = {m for w in workloads for m in methods[w]} - methods[main]
        for method in sorted(others, key=lambda m: _at(ORDER, m)):
            chosen.append(next(best[source, w, method] for w in workloads if method in methods[w]))
    return chosen


@dataclass(frozen=True)
class Costs:
    """The methods of one source."""

    source: Source
    by_method: dict[str, Sweep]

    def of(self, method: str, metric: str = WALL) -> Estimate | None:
        """Cost of one dispatch."""
        return self.by_method[method].cost(metric) if method in self.by_method else None

    @property
    def naive(self) -> Estimate | None:
        """What one dispatch and a wait take."""
        waited = self.by_method.get(WAITED)
        n = waited.near(1) if waited else None
        return waited.quotient(n) if waited and n else None

    @property
    def ratio(self) -> Estimate | None:
        """Of the naive figure to the sequential slope; the interval is of the worst and best corner."""
        naive, sequential = self.naive, self.of(SEQUENTIAL)
        if naive is None or sequential is None or sequential.low <= 0:
            return None
        low, high = naive.low / sequential.high, naive.high / sequential.low
        return Estimate(naive.value / sequential.value, low, high, min(naive.n, sequential.n), "ratio")


def costs(results: Results) -> list[Costs]:
    """Of every source that has any, the best first."""
    found: dict[Source, dict[str, Sweep]] = {}
    for s in plain(sweeps(results)):
        found.setdefault(s.source, {})[s.method] = s
    return [Costs(source, methods) for source, methods in found.items()]


def varied(found: Iterable[Sweep], name: str) -> dict[tuple[Source, str, str], dict[float, Estimate]]:
    """Cost of one dispatch over one parameter, for what has at least two values of it."""
    curves: dict[tuple[Source, str, str], dict[float, Estimate]] = {}
    for s in found:
        value = dict(s.setting).get(name)
        cost = s.cost()
        if isinstance(value, int | float) and cost is not None:
            curves.setdefault((s.source, s.workload, s.method), {})[float(value)] = cost
    return {key: points for key, points in curves.items() if len(points) > 1}


def idle_waits(results: Results) -> dict[Source, Series]:
    """What the wait of an idle queue takes, where it was measured."""
    return {s.source: s for s in results.find("dispatch", method=IDLE_WAIT, metric=WALL)}


def phases(results: Results) -> dict[Source, dict[str, Series]]:
    """The calls of one submit, by name."""
    found: dict[Source, dict[str, Series]] = {}
    for s in results.find("dispatch"):
        if s.now.method == PHASES:
            found.setdefault(s.source, {})[s.now.metric] = s
    return found


def first(found: list[Costs], has: Callable[[Costs], Any]) -> Costs | None:
    """The best source that has something."""
    return next((c for c in found if has(c)), None)


def _at(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)
