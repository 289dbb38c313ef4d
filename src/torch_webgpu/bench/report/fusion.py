"""The chapter on fusion: what fewer dispatches are worth, by hand, by the compiler, and on CUDA."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..names import DISPATCHES, WALL
from ..paper import nearest, titled
from ..results import Results, Series, Source
from ..stats import Comparison, compared
from . import plots
from .document import Cell, Chapter, Estimate, Plot, Table, number, p_value

_MODE = ("calls", "submits")
#: The paper's figure for a computation.
WANTED = {
    "rms_norm": titled("fusion", "RMSNorm fused speedup"),
    "mlp": titled("MLP fusion", "tiled speedup"),
    "rms_norm and mlp": titled("MLP fusion", "mega speedup"),
    "softmax": titled("kernel", "softmax speedup"),
}


@dataclass
class Group:
    """The variants of one computation on one source, timed in one way."""

    source: Source
    workload: str
    sizes: tuple[tuple[str, Any], ...]
    mode: tuple[tuple[str, Any], ...]
    times: dict[str, Series] = field(default_factory=dict)
    dispatches: dict[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Computation and sizes."""
        return f"{self.workload} ({', '.join(f'{k} {v}' for k, v in self.sizes)})" if self.sizes else self.workload

    @property
    def together(self) -> bool:
        """Whether one call and one wait were timed, with all dispatches of a call in one submit."""
        mode = dict(self.mode)
        return mode.get("calls", 1) == 1 and mode.get("submits", "one a call") == "one a call"

    def family(self, variant: str) -> str:
        """Variants are compared inside a family: by hand, compiled, or op by op and what replaces it."""
        start = variant.split(",")[0]
        return start if start in ("by hand", "compiled") else "eager"

    def baseline(self, variant: str) -> str | None:
        """The variant of its family with the most dispatches; None for itself and where it is alone."""
        family = self.family(variant)
        alike = [v for v in self.times if self.family(v) == family]
        if family == "eager":
            base = "eager" if "eager" in alike else None
            base = "logits read back" if "logits read back" in alike else base
        else:
            base = max(alike, key=lambda v: (self.dispatches.get(v, 0), -alike.index(v)))
        return None if base == variant else base

    def compared(self, variant: str) -> Comparison | None:
        """Against its baseline; None for the baseline itself."""
        base = self.baseline(variant)
        return None if base is None else compared(self.times[base].samples, self.times[variant].samples)

    def best(self, family: str) -> tuple[str, Comparison] | None:
        """The variant of a family that gains most by the median, where one is compared."""
        found = [(v, c) for v in self.times if self.family(v) == family and (c := self.compared(v)) is not None]
        return max(found, key=lambda f: f[1].median_ratio, default=None)


def groups(results: Results) -> list[Group]:
    """All computations; those timed with one wait a call first."""
    found: dict[tuple[Any, ...], Group] = {}
    counts: dict[tuple[Any, ...], dict[str, int]] = {}
    for s in results.find("fusion", metric=DISPATCHES):
        sizes = _part(s, None)
        counts.setdefault((s.source, s.now.workload, sizes), {})[s.now.method] = int(s.samples[0])
    for s in results.find("fusion", metric=WALL):
        sizes, mode = _part(s, None), _part(s, _MODE)
        group = found.setdefault((s.source, s.now.workload, sizes, mode), Group(s.source, s.now.workload, sizes, mode))
        group.times[s.now.method] = s
        group.dispatches = counts.get((s.source, s.now.workload, sizes), {})
    return sorted(found.values(), key=lambda g: (g.source.rank, not g.together, _mode(g)))


def _part(series: Series, keys: tuple[str, ...] | None) -> tuple[tuple[str, Any], ...]:
    """Parameters of the mode, or all others."""
    items = sorted(series.now.parameters.items())
    return tuple((k, v) for k, v in items if (k in _MODE if keys else k not in _MODE))


def chapter(results: Results) -> Chapter:
    """Every variant beside its baseline, with what CUDA gains from the same."""
    found = groups(results)
    chapter = Chapter(
        "fusion",
        "Fusion",
        "What fewer dispatches are worth. Every variant was checked against float64 before it was timed, variants "
        "took turns "
        "in random order, and dispatches are those the native core encoded. Gains are ratios of times: above 1 is faster. "
        "Where the ratio of means and that of medians point in different directions, outliers decide, and it is marked.",
    )
    if not found:
        return chapter
    chapter.blocks += list(_gains(results, found))
    chapter.blocks += list(_plots(results, found))
    for source in dict.fromkeys(g.source for g in found):
        for mode in dict.fromkeys(g.mode for g in found if g.source == source):
            chapter.blocks.append(_variants(results, [g for g in found if (g.source, g.mode) == (source, mode)]))
    return chapter


def _gains(results: Results, found: list[Group]) -> Iterable[Table]:
    """One table a target, one row a computation: the gain by hand, by the compiler, on CUDA, in the paper."""
    cuda = {(g.workload, g.sizes): g for g in found if g.source.target.kind == "cuda" and g.together}
    for source in dict.fromkeys(g.source for g in found if g.source.target.kind != "cuda"):
        table = Table(
            f"Gain of fusion, one wait a call: {results.label(source)}",
            ["computation", "by hand", "by the compiler", "op by op → compiled", "CUDA’s gain", "the paper"],
            note="By hand and by the compiler: the variant of most dispatches against the best fused one, by the medians; "
            "the interval is of the ratio of means. CUDA’s gain: op by op against torch.compile, same computation.",
        )
        for g in (g for g in found if g.source == source and g.together):
            beside = cuda.get((g.workload, g.sizes))
            published = nearest(source.target, WANTED[g.workload]) if g.workload in WANTED else None
            table.add(
                g.title,
                _gain(g.best("by hand")),
                _gain(g.best("compiled")),
                _gain(_eager_to_compiled(g)),
                _gain(beside.best("eager")) if beside else "–",
                Cell(published.value, published.platform, "quiet") if published else "–",
            )
        yield table


def _eager_to_compiled(group: Group) -> tuple[str, Comparison] | None:
    name = "compiled, full"
    if "eager" not in group.times or name not in group.times:
        return group.best("eager") if "logits read back" in group.times else None
    found = compared(group.times["eager"].samples, group.times[name].samples)
    return (name, found) if found else None


def _gain(best: tuple[str, Comparison] | None) -> Cell | str:
    if best is None:
        return "–"
    name, c = best
    tone: Any = "good" if c.ratio_ci.low > 1 else "bad" if c.ratio_ci.high < 1 else ""
    return Cell(f"{number(c.median_ratio)}×", f"{name}; {number(c.ratio_ci.low)} to {number(c.ratio_ci.high)}", tone)


def _plots(results: Results, found: list[Group]) -> Iterable[Plot]:
    for i, source in enumerate(dict.fromkeys(g.source for g in found)):
        rows = {}
        for g in (g for g in found if g.source == source and g.together):
            for family in ("by hand", "compiled", "eager"):
                if best := g.best(family):
                    name, c = best
                    n = len(g.times[name].samples)
                    rows[f"{g.title}: {name}"] = Estimate.within(c.ratio, c.ratio_ci, n, "ratio")
        if rows:
            shown = dict(list(rows.items())[:14])
            alt = "; ".join(f"{name} {e.text}" for name, e in shown.items())
            picture = plots.dots(f"fusion{i}", shown, alt, "gain over the unfused baseline (means)", reference=1.0)
            yield Plot(f"Best gain by computation: {results.label(source)}", picture, alt)


def _variants(results: Results, found: list[Group]) -> Table:
    mode = _mode(found[0])
    table = Table(
        f"{results.label(found[0].source)}: every variant, {mode}",
        ["computation", "variant", "dispatches", "median", "against", "gain, means", "gain, medians", "Welch p", "Cohen d"],
        numeric=2,
    )
    for g in found:
        for variant, series in g.times.items():
            c = g.compared(variant)
            dispatches = g.dispatches.get(variant)
            row = [g.title, variant, str(dispatches) if dispatches is not None else "–"]
            median = Cell.of(Estimate.of(series.samples, series.now.unit))
            if c is None:
                table.add(*row, median, "baseline", "–", "–", "–", "–")
                continue
            reversal = (c.ratio - 1) * (c.median_ratio - 1) < 0
            means = Cell(f"{number(c.ratio)}×", f"{number(c.ratio_ci.low)} to {number(c.ratio_ci.high)}")
            medians = Cell(
                f"{number(c.median_ratio)}×", "reversed by outliers" if reversal else "", "bad" if reversal else ""
            )
            d = "–" if math.isnan(c.d) else number(c.d)
            table.add(*row, median, g.baseline(variant) or "", means, medians, p_value(c.p), d)
    return table


def _mode(group: Group) -> str:
    mode = dict(group.mode)
    calls, submits = mode.get("calls", 1), mode.get("submits", "one a call")
    return f"{calls} call{'s' if calls != 1 else ''} and one wait, submits: {submits}"
