"""Puts a report together: first screen, chapters, where the figures are from."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from .. import paper
from ..names import RATE, SEQUENTIAL
from ..results import Results, Series
from ..schema import ResultError, Target
from ..stats import summarise
from . import disagreements, dispatch, fusion, lines, models, overhead, render, stacks
from .document import Cell, Chapter, Document, Estimate, Headline, Table, number

TITLE = "What a WebGPU dispatch really costs"


def write(results: Results, folder: Path) -> tuple[Path, Path]:
    """Writes ``report.html`` and ``report.md`` into the folder.

    Raises:
        ResultError: where there is no run to report.
    """
    if not results.runs:
        raise ResultError("there is no usable result file among those given")
    made = document(results)
    folder.mkdir(parents=True, exist_ok=True)
    pages = folder / "report.html", folder / "report.md"
    pages[0].write_text(render.html(made), "utf-8")
    pages[1].write_text(render.markdown(made), "utf-8")
    return pages


def document(results: Results) -> Document:
    """The report of these results."""
    found = lines.costs(results)
    found_stacks = stacks.stacks(results)
    chapters = [
        dispatch.chapter(results), overhead.chapter(results), fusion.chapter(results), models.llm_chapter(results),
        models.vision_chapter(results), models.power_chapter(results), disagreements.chapter(results), agreement(results),
        sources(results),
    ]  # fmt: skip
    count = sum(len(s.takes) for s in results.all)
    samples = sum(len(t.measurement.samples) for s in results.all for t in s.takes)
    made = datetime.now(timezone.utc)
    return Document(
        title=TITLE,
        summary=_summary(results, found),
        headlines=[
            *_dispatch_headlines(results, found),
            *_share_headline(results, found_stacks),
            *_fusion_headline(results),
            *_model_headlines(results),
        ],
        chapters=[c for c in chapters if c],
        warnings=_warnings(results),
        made=f"Made by torch-webgpu bench report on {made:%Y-%m-%d %H:%M} UTC from {len(results.runs)} runs with {count} "
        f"measurements and {samples} samples. Intervals are of 95 %; medians unless stated; outliers are kept. "
        "“The paper” is arXiv 2604.02344, by its published raw data.",
        share=overhead.picture(results, found_stacks, found_stacks[0].workload, "share") if found_stacks else None,
    )


def _summary(results: Results, found: list[lines.Costs]) -> str:
    c = lines.first(found, lambda c: c.naive and c.of(SEQUENTIAL) and c.ratio)
    parts = []
    if c is not None:
        naive, slope, ratio = c.naive, c.of(SEQUENTIAL), c.ratio
        assert naive and slope and ratio
        parts.append(
            f"On {results.label(c.source)}, timing one dispatch and a wait gives {naive.text}; in a sequence, one "
            f"dispatch more "
            f"costs {slope.text}. The naive figure is {number(ratio.value)} times as large."
        )
    done = disagreements.answered(results)
    parts.append(f"{done} of the paper’s 8 disagreements are answered by these files.")
    return " ".join(parts)


def _dispatch_headlines(results: Results, found: list[lines.Costs]) -> list[Headline]:
    """Slope, naive figure and ratio, of the best source that has them, the others below."""
    wanted = (
        ("One dispatch more, in a sequence", lambda c: c.of(SEQUENTIAL), paper.SEQUENTIAL),
        ("One dispatch and a wait: the naive figure", lambda c: c.naive, paper.WAITED),
        ("Naive ÷ sequential slope", lambda c: c.ratio, paper.RATIO),
    )
    headlines = []
    for label, get, published in wanted:
        with_it = [(c, e) for c in found if (e := get(c)) is not None]
        if not with_it:
            continue
        (c, e), *rest = with_it
        beside = paper.nearest(c.source.target, published)
        value, unit = _apart(e)
        others = [f"{e.text} {results.label(c.source)}" for c, e in rest[:3]]
        detail = f"{results.label(c.source)}; {e.detail}"
        headlines.append(Headline(label, value, unit, detail, others, beside.text if beside else ""))
    return headlines


def _share_headline(results: Results, found: list[stacks.Stack]) -> list[Headline]:
    if not found:
        return []
    stack = found[0]
    most = max(stack.parts, key=stack.share)
    others = [f"{part.layer} {stack.share_text(part)}" for part in stack.parts if part is not most]
    label = f"Largest share of one PyTorch op, {stack.workload}"
    detail = f"{most.layer}, of {stack.whole.text}; {results.label(stack.source)}"
    value, unit = f"{100 * stack.share(most):.0f}", f"% {most.layer}"
    return [Headline(label, value, unit, detail, others, "~95 µs an operation in all")]


def _fusion_headline(results: Results) -> list[Headline]:
    """The gain of RMSNorm as one dispatch, CUDA's beside it."""
    found = [g for g in fusion.groups(results) if g.workload == "rms_norm" and g.together]
    gains = [(g, b) for g in found if g.source.target.kind != "cuda" and (b := g.best("by hand") or g.best("compiled"))]
    if not gains:
        return []
    (g, (name, c)), *_ = gains
    base = g.baseline(name) or ""
    counts = [str(g.dispatches[v]) for v in (base, name) if v in g.dispatches]
    label = "RMSNorm fused" + (f", {' → '.join(counts)} dispatches" if len(counts) == 2 else "")
    interval = f"means {number(c.ratio_ci.low)} to {number(c.ratio_ci.high)}, n = {len(g.times[name].samples)}"
    detail = f"{results.label(g.source)}; {interval}"
    rivals = [b[1] for r in found if r.source.target.kind == "cuda" and r.sizes == g.sizes and (b := r.best("eager"))]
    others = [f"{number(r.median_ratio)}× CUDA, by torch.compile" for r in rivals]
    others += [f"{number(o.median_ratio)}× {results.label(h.source)}" for h, (_, o) in gains[1:3] if h.sizes == g.sizes]
    beside = paper.nearest(g.source.target, fusion.WANTED["rms_norm"])
    return [Headline(label, f"{number(c.median_ratio)}×", "", detail, others, beside.text if beside else "")]


def _model_headlines(results: Results) -> list[Headline]:
    found = models.variants(results, "llm")
    fastest = sorted(models.best(found), key=lambda v: v.source.rank)
    if not fastest:
        return []
    v, *others = fastest
    e, rival, published = v.estimate(RATE), models.beside(v, found), models.published_rate(v)
    assert e is not None
    value, unit = _apart(e)
    beside = (
        [f"{r.text} CUDA ({rival.method})"] if rival and (r := rival.estimate(RATE)) else ["CUDA not measured beside it"]
    )
    beside += [f"{o.text} {results.label(w.source)}, {w.workload}" for w in others[:2] if (o := w.estimate(RATE))]
    label = f"Decoding, {v.workload}" + (f", {v.value('dtype')}" if v.value("dtype") else "")
    detail = f"{results.label(v.source)}; {e.detail}"
    return [Headline(label, value, unit, detail, beside, published.text if published else "")]


def _apart(e: Estimate) -> tuple[str, str]:
    value, _, unit = e.text.rpartition(" ")
    return (value, unit) if value else (e.text, "")


def _warnings(results: Results) -> list[str]:
    warnings = []
    if cut := [path.name for path, run in results.runs if not run.complete]:
        warnings.append(f"Interrupted, so incomplete (what is there was measured in full): {', '.join(cut)}.")
    if imported := [path.name for path, run in results.runs if run.origin == "imported"]:
        warnings.append(f"Imported from another instrument, not measured by this one: {', '.join(imported)}.")
    if results.refused:
        warnings.append(f"Refused, so not in this report: {'; '.join(str(e) for e in results.refused)}.")
    if results.impossible:
        warnings.append(f"Above what the device can do, so in no figure: {'; '.join(results.impossible)}.")
    return warnings


def agreement(results: Results) -> Chapter:
    """Quantities that several runs measured on the same source."""
    chapter = Chapter(
        "agreement",
        "Reruns",
        "Quantities that several runs measured on the same target, machine and settings. The newest complete run is the one "
        "shown elsewhere; runs are never pooled.",
    )
    repeated = [s for s in results.all if len(s.takes) > 1]
    if not repeated:
        return chapter
    overlapping = sum(_overlap(s) for s in repeated)
    table = Table(
        f"{overlapping} of {len(repeated)} agree: all 95 % intervals of their medians overlap",
        ["quantity", "runs", "medians, oldest first", "largest ÷ smallest", "intervals"],
    )
    for s in sorted(repeated, key=_spread, reverse=True)[:40]:
        m = s.now
        settings = ", ".join(f"{k} {v}" for k, v in sorted(m.parameters.items()))
        name = Cell(f"{results.label(s.source)}: {m.experiment}, {m.workload}, {m.method}, {m.metric}", settings)
        medians = "; ".join(Estimate.of(t.measurement.samples, m.unit).text for t in s.takes)
        agree = _overlap(s)
        tone = Cell("overlap" if agree else "apart", tone="good" if agree else "bad")
        table.add(name, str(len(s.takes)), medians, f"{number(_spread(s))}×", tone)
    if len(repeated) > 40:
        table.note = f"The 40 that differ most, of {len(repeated)}."
    chapter.blocks.append(table)
    return chapter


def _spread(s: Series) -> float:
    medians = [abs(summarise(t.measurement.samples).median) for t in s.takes]
    return max(medians) / min(medians) if min(medians) > 0 else float("inf")


def _overlap(s: Series) -> bool:
    intervals = [summarise(t.measurement.samples).median_ci for t in s.takes]
    return max(i.low for i in intervals) <= min(i.high for i in intervals)


def _clocks(t: Target) -> str:
    """Before and after, by name; of those that did not change one value."""
    both = {name: [c[name] for c in (t.clocks, t.clocks_after) if name in c] for name in {**t.clocks, **t.clocks_after}}
    told = [f"{name} {' → '.join(f'{v:g}' for v in dict.fromkeys(values))}" for name, values in both.items()]
    return ", ".join(told) or "not known"


def sources(results: Results) -> Chapter:
    """Runs, with environment; and targets, with driver, features and clocks."""
    chapter = Chapter("sources", "Where the figures are from")
    runs = Table("Runs", ["file", "made", "state", "command", "system", "CPU", "versions", "load", "settings"], numeric=9)
    for path, run in results.runs:
        e = run.environment
        page = f"{e.browser.name} {e.browser.version}: {e.browser.user_agent}" if e.browser else ""
        state = "complete" if run.complete else "interrupted"
        state = f"imported, {state}" if run.origin == "imported" else state
        versions = ", ".join(f"{k} {v}" for k, v in e.versions.items()) or "not stated"
        load = " ".join(filter(None, (number(e.load, 2) if e.load is not None else "not stated", e.governor)))
        cores = f"{e.cores} cores" if e.cores is not None else "cores not stated"
        command = " ".join([Path(run.command[0]).name, *run.command[1:]]) if run.command else "–"
        settings = ", ".join(f"{k}={v}" for k, v in e.variables.items()) or "–"
        tone = Cell(state, tone="" if run.complete else "bad")
        made = f"{run.created:%Y-%m-%d %H:%M}"
        runs.add(
            path.name,
            made,
            tone,
            command,
            Cell(e.system, page),
            Cell(e.cpu, cores),
            Cell(versions, tone="quiet"),
            load,
            settings,
        )
    targets = Table(
        "Targets", ["target", "version", "adapter", "driver", "features", "clocks, MHz", "shortest wait", "tuned"], numeric=6
    )
    seen = set()
    for _, run in results.runs:
        for t in run.targets:
            clocks = _clocks(t)
            row = (
                t.label,
                t.version or "–",
                f"{t.adapter} ({t.adapter_kind})",
                t.driver or "–",
                ", ".join(t.features) or "–",
                clocks,
                f"{number(t.wait_us)} µs" if t.wait_us is not None else "–",
                ", ".join(f"{count} {origin}" for origin, count in t.tuned.items()) or "–",
            )
            if row not in seen:
                seen.add(row)
                targets.add(*row)
    chapter.blocks += [runs, targets]
    return chapter
