"""The chapter on dispatch: what one costs by method and target, and what is mistaken for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import paper
from ..names import GPU, HOST, ONE_PASS, PASSES, PHASE_ORDER, SEQUENTIAL, UNWAITED, WAITED, WALL
from ..results import Results, Source
from . import plots
from .document import Cell, Chapter, Estimate, Plot, Table, Text, number
from .lines import Costs, Sweep, costs, idle_waits, phases, sweeps, varied

_PUBLISHED = {WAITED: paper.WAITED, UNWAITED: paper.UNWAITED, SEQUENTIAL: paper.SEQUENTIAL, PASSES: paper.BATCHED}
_VARIED = {"bindings": "storage buffers bound", "workgroups": "workgroups", "pipelines": "pipelines, taken in turn"}


def chapter(results: Results) -> Chapter:
    """Slopes and intercepts, the naive figure, phases, host against GPU, and what changes the cost."""
    chapter = Chapter(
        "dispatch",
        "Dispatch",
        "n dispatches are timed until all are done, for several n, and a line is fitted: its slope is what one dispatch "
        "costs, its intercept what starting and waiting cost. One dispatch and one wait divided by one is both together, "
        "which is how a naive benchmark overstates a dispatch.",
    )
    found, all_sweeps = costs(results), sweeps(results)
    if found:
        chapter.blocks += [_naive(results, found), *_naive_plot(results, found), *_slopes(results, found)]
        chapter.blocks += [*_line_plots(results, found), *_balance(results, found)]
        chapter.blocks += list(_browsers(results, found))
    chapter.blocks += [*_phases(results), *_influences(results, all_sweeps)]
    return chapter


def _slopes(results: Results, found: list[Costs]) -> Iterable[Table | Text]:
    for c in found:
        table = Table(
            f"Cost of a dispatch by method: {results.label(c.source)}",
            ["method", "workload", "slope", "intercept", "n swept", "R²", "largest residual", "the paper"],
            numeric=2,
        )
        for method, sweep in c.by_method.items():
            if sweep.by_n.get(WALL):
                _slope(table, method, sweep, _published(c.source, method))
        if table.rows:
            yield table
    yield Text(
        "Slope and intercept have 95 % bootstrap intervals; n counts samples. Fits weight each n by 1 / its median. What is "
        "marked “quotient” comes from fewer than three n and so contains a share of the wait. The paper’s figures are "
        "quotients at n = 100 (or 1) on the platform nearest to the target, which is named.",
        "note",
    )


def _slope(table: Table, method: str, sweep: Sweep, published: Cell | str) -> None:
    """A row."""
    by_n, line, cost = sweep.by_n[WALL], sweep.line(), sweep.cost()
    name = Cell(method, "interrupted run" if sweep.interrupted else "")
    counts = " ".join(str(n) for n in sorted(by_n))
    workload = Cell(sweep.workload, ", ".join(f"{k} {v}" for k, v in sweep.setting))
    if line is None:
        cell = Cell(cost.text, f"{cost.detail}; quotient") if cost else "–"
        table.add(name, workload, cell, "–", counts, "–", "–", published)
        return
    worst = max(line.residuals, key=lambda n: abs(line.residuals[n]) / max(_median(by_n[n]), 1e-12))
    share = 100 * line.residuals[worst] / max(_median(by_n[worst]), 1e-12)
    residual = Cell(f"{number(share, 2)} %", f"at n = {worst}")
    table.add(name, workload, cost, sweep.intercept(), counts, f"{line.r2:.4f}", residual, published)


def _published(source: Source, method: str) -> Cell | str:
    wanted = _PUBLISHED.get(method)
    found = paper.nearest(source.target, wanted) if wanted else None
    return _beside(found)


def _beside(found: paper.Published | None) -> Cell | str:
    return Cell(found.value, found.platform, "quiet") if found else "–"


def _line_plots(results: Results, found: list[Costs]) -> Iterable[Plot]:
    for i, c in enumerate(found):
        fits = []
        for method, sweep in c.by_method.items():
            line = sweep.line()
            if line is not None and any(max(samples) > 0 for samples in sweep.by_n[WALL].values()):
                fits.append(plots.Fitted(method, sweep.by_n[WALL], line))
        if not fits:
            continue
        alt = "; ".join(f"{f.label}: {number(f.line.slope)} µs a dispatch + {number(f.line.intercept)} µs" for f in fits)
        label = results.label(c.source)
        yield Plot(f"Every sample and the lines: {label}", plots.lines(f"lines{i}", fits, alt), alt)
        worst = max(abs(r) / max(_median(f.samples[n]), 1e-12) for f in fits for n, r in f.line.residuals.items())
        alt = f"What the lines leave of the medians: at most {number(100 * worst, 2)} %"
        yield Plot(f"What the lines leave: {label}", plots.residuals(f"residuals{i}", fits, alt), alt)


def _naive(results: Results, found: list[Costs]) -> Table:
    table = Table(
        "The naive figure against the slope",
        [
            "target",
            "one dispatch and a wait",
            "sequential slope",
            "naive ÷ slope",
            "sequential, n = 100, ÷ 100",
            "paper’s ratio",
        ],
        note="The column before the last is the paper’s own quotient: where a wait is long (a browser’s tick), a "
        "hundredth of "
        "it is in there. n = 100, or the nearest n measured.",
    )
    for c in found:
        sequential = c.by_method.get(SEQUENTIAL)
        if c.naive is None and sequential is None:
            continue
        n = sequential.near(100) if sequential else None
        quotient = sequential.quotient(n) if sequential and n else None
        cell = Cell(quotient.text, f"n = {n}; {quotient.detail}") if quotient else "–"
        beside = _beside(paper.nearest(c.source.target, paper.RATIO))
        table.add(results.label(c.source), c.naive, c.of(SEQUENTIAL), c.ratio, cell, beside)
    return table


def _browsers(results: Results, found: list[Costs]) -> Iterable[Table]:
    """Browsers, and the native libraries of the same kind of adapter beside them."""
    idle = idle_waits(results)
    pages = [c for c in found if c.source.target.kind == "browser"]
    kinds = {c.source.target.adapter_kind for c in pages}
    native = [c for c in found if c.source.target.kind == "webgpu" and c.source.target.adapter_kind in kinds]
    if not pages:
        return
    names = ["target", "clock step", "wait of an idle queue", "one dispatch and a wait"]
    names += [
        "sequential slope",
        "its intercept",
        "sequential, n = 100, ÷ 100",
        "slope in one pass",
        "the paper",
    ]
    note = (
        "What a wait takes while there is nothing to wait for is a floor under every figure with one wait in it, and so "
        "part of the intercept. A browser that polls every 100 ms shows it there, and in a quotient, where it looks like a "
        "dispatch’s cost. The paper’s figures are such quotients."
    )
    table = Table("Browsers, beside native libraries on the same kind of adapter", names, note=note)
    for c in [*pages, *native]:
        sequential = c.by_method.get(SEQUENTIAL)
        n = sequential.near(100) if sequential else None
        floor = Estimate.of(idle[c.source].samples, "us") if c.source in idle else None
        table.add(
            results.label(c.source),
            _clock(results, c.source),
            floor,
            c.naive,
            c.of(SEQUENTIAL),
            sequential.intercept() if sequential else None,
            sequential.quotient(n) if sequential and n else None,
            c.of(ONE_PASS),
            _published(c.source, SEQUENTIAL),
        )
    yield table


def _clock(results: Results, source: Source) -> Cell | str:
    """How fine a page's clock was."""
    takes = [t for s in results.find("dispatch") if s.source == source for t in s.takes]
    browser = takes[-1].run.environment.browser
    if browser is None:
        return "–"
    return Cell(f"{number(browser.timer_step)} µs", "isolated" if browser.isolated else "not isolated")


def _naive_plot(results: Results, found: list[Costs]) -> Iterable[Plot]:
    rows: dict[str, Estimate] = {}
    ranges = {}
    for c in found:
        for name, e, wanted in (("naive", c.naive, paper.WAITED), ("slope", c.of(SEQUENTIAL), paper.SEQUENTIAL)):
            if e is None or e.value <= 0:
                continue
            row = f"{results.label(c.source)}: {name}"
            rows[row] = e
            if published := paper.nearest(c.source.target, wanted):
                ranges[row] = published.low, published.high
    if len(rows) > 1:
        alt = "; ".join(f"{name} {e.text}" for name, e in rows.items())
        picture = plots.dots("naive", rows, alt, "µs a dispatch, logarithmic", ranges, log=True)
        yield Plot("Naive figure and sequential slope, beside the paper’s nearest platform", picture, alt)


def _balance(results: Results, found: list[Costs]) -> Iterable[Table]:
    table = Table(
        "Host, wall and GPU time of a dispatch",
        [
            "target and method",
            "host: until the calls return",
            "wall: until all is done",
            "GPU: by its timestamps",
            "balance",
        ],
        note="Where host and wall agree the host is the bottleneck and the GPU waits for work; where GPU and wall "
        "agree it is "
        "the GPU. Negative and zero timestamps are dropped by whoever measures, and counted.",
    )
    for c in found:
        for method, sweep in c.by_method.items():
            host, wall, gpu = (sweep.cost(m) if m in sweep.by_n else None for m in (HOST, WALL, GPU))
            if wall is None or (host is None and gpu is None):
                continue
            table.add(f"{results.label(c.source)}: {method}", host, wall, gpu, _bound(host, wall, gpu))
    if table.rows:
        yield table


def _bound(host: Estimate | None, wall: Estimate, gpu: Estimate | None) -> str:
    parts = {"host": host, "GPU": gpu}
    shares = {name: e.value / wall.value for name, e in parts.items() if e is not None and wall.value > 0}
    if not shares:
        return "–"
    name = max(shares, key=shares.__getitem__)
    return f"{name}: {100 * shares[name]:.0f} % of wall"


def _phases(results: Results) -> Iterable[Table | Plot]:
    found = phases(results)
    if not found:
        return
    table = Table(
        "Phases of one submit of one dispatch, on the host",
        ["phase", *(results.label(s) for s in found), "the paper"],
        note="Each call timed by itself, less what reading the clock costs.",
    )
    names = dict.fromkeys([p for p in PHASE_ORDER if any(p in f for f in found.values())])
    names |= dict.fromkeys(p for f in found.values() for p in f)
    costs = {s: {p: Estimate.of(x.samples, "us", x.parameter("n", 1)) for p, x in f.items()} for s, f in found.items()}
    nearest = next(iter(found)).target
    for phase in names:
        published = paper.nearest(nearest, paper.phase(phase))
        table.add(phase, *(costs[s].get(phase) for s in found), _beside(published))
    totals = [Cell(f"{number(sum(e.value for e in costs[s].values()))} µs") for s in found]
    total = paper.nearest(nearest, paper.phase("total"))
    table.add("sum", *totals, _beside(total))
    yield table
    bars = {results.label(s): {p: costs[s][p].value for p in names if p in costs[s]} for s in found}
    bars["the paper (RTX 5090, wgpu-native)"] = _paper_phases(names)
    alt = "; ".join(f"{name}: {number(sum(bar.values()))} µs" for name, bar in bars.items())
    yield Plot("Phases of one submit of one dispatch", plots.stacked("phases", bars, alt), alt)


def _paper_phases(names: Iterable[str]) -> dict[str, float]:
    found = {}
    for name in names:
        values = [r.value for r in paper.records() if paper.phase(name)(r) and isinstance(r.value, float)]
        if values:
            found[name] = values[-1]
    return found


def _influences(results: Results, found: list[Sweep]) -> Iterable[Table | Plot]:
    for name, title in _VARIED.items():
        curves = varied(found, name)
        if not curves:
            continue
        shown = {f"{results.label(s)}: {m}": points for (s, _, m), points in curves.items()}
        table = Table(f"Cost of a dispatch by {title}", ["target and method", *_values(curves), "change"])
        for label, points in shown.items():
            low, high = points[min(points)], points[max(points)]
            change = number(high.value / low.value, 2) + "×" if low.value > 0 else "–"
            table.add(label, *(points.get(float(v)) for v in _values(curves)), change)
        yield table
        alt = "; ".join(
            f"{label}: {points[min(points)].text} to {points[max(points)].text}" for label, points in shown.items()
        )
        picture = plots.curves(f"by-{name}", shown, alt, title, "µs a dispatch")
        yield Plot(f"Cost of a dispatch by {title}", picture, alt)


def _values(curves: dict[tuple[Source, str, str], dict[float, Estimate]]) -> list[str]:
    return [f"{v:g}" for v in sorted({v for points in curves.values() for v in points})]


def _median(samples: Sequence[float]) -> float:
    ordered = sorted(samples)
    return ordered[len(ordered) // 2]
