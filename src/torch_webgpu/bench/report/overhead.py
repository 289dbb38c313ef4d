"""The chapter on overhead: whose microseconds those of a dispatch are."""

from __future__ import annotations

from dataclasses import dataclass

from ..names import EAGER, HOST, LAYERS, ONE_PASS, PART
from ..results import Results, Source
from . import plots
from .document import Chapter, Estimate, Plot, Table, number
from .lines import Costs, costs


@dataclass(frozen=True)
class Stack:
    """The layers of one op's time on one source.

    Attributes:
        parts: µs by layer, from the hardware up; small negative ones are noise of a difference.
        derived: whether they are differences of `bench dispatch` figures.
    """

    source: Source
    parts: dict[str, Estimate]
    derived: bool

    @property
    def total(self) -> float:
        """µs of all layers."""
        return sum(max(e.value, 0) for e in self.parts.values())

    def share(self, layer: str) -> float:
        """Part of the total."""
        return max(self.parts[layer].value, 0) / self.total if self.total else 0.0


def stacks(results: Results) -> list[Stack]:
    """Measured ones, and for sources without them those that dispatch figures give."""
    measured: dict[Source, dict[str, Estimate]] = {}
    for s in results.find("overhead", metric=PART, unit="us"):
        measured.setdefault(s.source, {})[s.now.method] = Estimate.of(s.samples, "us")
    found = [Stack(source, _ordered(parts), False) for source, parts in measured.items()]
    all_costs = costs(results)
    null = next((c for c in all_costs if c.source.target.adapter_kind == "null"), None)
    for c in all_costs:
        if c.source not in measured and c.source.target.kind == "webgpu" and c.source.target.adapter_kind != "null":
            parts = _derived(c, null)
            if len(parts) > 1:
                found.append(Stack(c.source, parts, True))
    return found


def _ordered(parts: dict[str, Estimate]) -> dict[str, Estimate]:
    known = [layer for layer in LAYERS if layer in parts]
    return {layer: parts[layer] for layer in [*known, *(p for p in parts if p not in known)]}


def _derived(c: Costs, null: Costs | None) -> dict[str, Estimate]:
    """Differences of slopes: the null driver's is the API, the host's less that the driver's, the rest of wall the GPU's.

    Launches of one pass are compared, for so a PyTorch op is launched here too, and none has a submit of its own.
    """
    wall, host = c.of(ONE_PASS), c.of(ONE_PASS, HOST) if _has(c, ONE_PASS, HOST) else None
    eager = c.of(EAGER, HOST) if _has(c, EAGER, HOST) else c.of(EAGER)
    api = null.of(ONE_PASS) if null else None
    parts: dict[str, Estimate] = {}
    if wall and host:
        parts["GPU and queue"] = _less(wall, host)
    below = host or wall
    if below and api and _same_library(c, null):
        parts["driver"] = _less(below, api)
        parts["API"] = api
    elif below:
        parts["API and driver"] = below
    if eager and below:
        parts["framework and Python"] = _less(eager, below)
    return parts


def _same_library(c: Costs, null: Costs | None) -> bool:
    return null is not None and null.source.target.implementation.startswith(c.source.target.implementation)


def _has(c: Costs, method: str, metric: str) -> bool:
    return method in c.by_method and metric in c.by_method[method].by_n


def _less(a: Estimate, b: Estimate) -> Estimate:
    return Estimate(a.value - b.value, a.low - b.high, a.high - b.low, min(a.n, b.n), a.unit)


def chapter(results: Results) -> Chapter:
    """The stacked bars and their table."""
    chapter = Chapter(
        "overhead",
        "Overhead",
        "Whose microseconds these are. The API alone is what a driver that does nothing leaves; the driver is "
        "what a real one "
        "adds on the host; the GPU what is left until all is done; framework and Python what a PyTorch op adds to that.",
    )
    found = stacks(results)
    if found:
        chapter.blocks += [picture(results, found), _table(results, found)]
    others = [s for s in results.find("overhead") if s.now.metric != PART]
    if others:
        table = Table(
            "What the decomposition is made of", ["target, workload and method", "metric", "median", "note"], numeric=2
        )
        for s in others:
            settings = ", ".join(f"{k} {v}" for k, v in sorted(s.now.parameters.items()))
            name = f"{results.label(s.source)}: {s.now.workload}, {s.now.method}" + (f" ({settings})" if settings else "")
            table.add(name, s.now.metric, Estimate.of(s.samples, s.now.unit), "; ".join(s.now.notes))
        chapter.blocks.append(table)
    return chapter


def picture(results: Results, found: list[Stack], key: str = "overhead") -> Plot:
    """All stacks as bars; ``key`` is the plot's own on the page."""
    bars = {results.label(s.source): {layer: e.value for layer, e in s.parts.items()} for s in found}
    alt = "; ".join(f"{results.label(s.source)}: {shares(s)}" for s in found)
    return Plot("Whose microseconds: one PyTorch op, layer by layer", plots.stacked(key, bars, alt), alt)


def shares(stack: Stack) -> str:
    """In words."""
    return ", ".join(f"{layer} {100 * stack.share(layer):.0f} %" for layer in stack.parts)


def _table(results: Results, found: list[Stack]) -> Table:
    table = Table(
        "Layers of one PyTorch op, µs",
        ["target", "layer", "µs", "share", "how"],
        note="Layers are differences of medians or slopes; their intervals take the worst corners. A negative one "
        "means that "
        "the two figures do not differ by more than their noise.",
        numeric=2,
    )
    for s in found:
        for layer, e in s.parts.items():
            how = "difference of dispatch figures" if s.derived else "measured"
            table.add(results.label(s.source), layer, e, f"{100 * s.share(layer):.0f} %", how)
        table.add(results.label(s.source), "all", f"{number(s.total)} µs", "100 %", "")
    return table
