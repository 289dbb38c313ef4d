"""Rows of a run for people: lines over the number of dispatches where it was varied, medians otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from .schema import Measurement, Parameter, Run
from .stats import Line, Summary, fit_line, summarise

VARIED = "n"


@dataclass(frozen=True)
class Row:
    """One method's result on one target.

    Attributes:
        parameters: without the varied one.
        line: over the varied parameter where it has three values or more.
        summary: of the samples where there is no line.
    """

    target: str
    workload: str
    method: str
    metric: str
    unit: str
    parameters: dict[str, Parameter]
    line: Line | None = None
    summary: Summary | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)


def rows(run: Run) -> list[Row]:
    """The run's rows in the order of measuring."""
    groups: dict[tuple[Any, ...], list[Measurement]] = {}
    for m in run.measurements:
        rest = tuple(sorted((k, v) for k, v in m.parameters.items() if k != VARIED))
        groups.setdefault((m.target, m.workload, m.method, m.metric, m.unit, rest), []).append(m)
    found: list[Row] = []
    for members in groups.values():
        found += _rows(run, members)
    return found


def _rows(run: Run, members: list[Measurement]) -> Iterable[Row]:
    first = members[0]
    common = (run.target_of(first).label, first.workload, first.method, first.metric, first.unit)
    counts = {int(m.parameters[VARIED]): m for m in members if VARIED in m.parameters}
    if len(counts) == len(members) >= 3:
        line = fit_line({n: m.samples for n, m in counts.items()})
        notes = tuple(dict.fromkeys(note for m in members for note in m.notes))
        rest = {k: v for k, v in first.parameters.items() if k != VARIED}
        yield Row(*common, rest, line=line, notes=notes)
        return
    for m in members:
        yield Row(*common, dict(m.parameters), summary=summarise(m.samples), notes=tuple(m.notes))


def table(run: Run) -> Table:
    """All rows: a line's slope and intercept, or a median, with their 95 % intervals."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "workload", "method", "metric", "per dispatch, or median", "of the wait", "unit"):
        out.add_column(name, justify="right" if "per" in name or "of the" in name else "left")
    former = ""
    for row in rows(run):
        method = " ".join([row.method, *(f"{k}={v}" for k, v in row.parameters.items())])
        if row.line:
            value, wait = _with(row.line.slope, row.line.slope_ci), _with(row.line.intercept, row.line.intercept_ci)
        else:
            assert row.summary
            value, wait = _with(row.summary.median, row.summary.median_ci), ""
        out.add_row(row.target if row.target != former else "", row.workload, method, row.metric, value, wait, row.unit)
        former = row.target
    return out


def _with(value: float, interval: Any) -> str:
    return f"{value:.4g} [{interval.low:.4g}, {interval.high:.4g}]"
