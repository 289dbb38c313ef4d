"""The chapter on overhead: whose microseconds those of a tensor op and of a decode step are."""

from __future__ import annotations

from collections.abc import Iterable

from ..names import (
    API,
    API_AND_DRIVER,
    CALLS_ALONE,
    CPP,
    CPP_AND_DRIVER,
    CPP_AND_PYTHON,
    CUDA_GRAPH,
    DEVICE,
    DEVICE_AND_QUEUE,
    DRIVER,
    FROM_CPP,
    FROM_PYTHON,
    OVERLAPPED,
    PYTHON,
    QUEUE,
    STAGE_ORDER,
    STAGES,
)
from ..results import Results, Series, Source
from . import plots
from .document import Block, Cell, Chapter, Estimate, Plot, Table, Text, number
from .stacks import ENCODING, MAIN, Part, Stack, stacks

COMMAND = "torch-webgpu bench overhead"
#: Layers that never stand in one bar may share a colour.
_COLOURS = {
    DEVICE: 0, DEVICE_AND_QUEUE: 0, QUEUE: 1, DRIVER: 2, API_AND_DRIVER: 3, API: 4, CPP_AND_DRIVER: 5, CPP_AND_PYTHON: 5,
    CPP: 6, PYTHON: 7,
}  # fmt: skip
_KNOWN = {CALLS_ALONE, FROM_CPP, FROM_PYTHON, OVERLAPPED, CUDA_GRAPH, STAGES}


def chapter(results: Results) -> Chapter:
    """Stacks of ops and of steps as bars and tables, the balance of host and GPU, and the C++ core's own stages."""
    chapter = Chapter(
        "overhead",
        "Overhead",
        "Whose microseconds these are. The same work is done from the inside out: the calls to the library alone, through "
        "PyTorch’s dispatcher and the C++ core, from Python. Each layer is the difference of two slopes over n. A sample is "
        "one submit, so that nothing overlaps and the layers add up to the time of one op, or step, more.",
    )
    found = stacks(results)
    if not found:
        if results.find("dispatch"):
            chapter.blocks += [
                Text("These files hold no decomposition. What measures one, beside what is here:"),
                Text(COMMAND, "command"),
            ]
        chapter.blocks += _others(results)
        return chapter
    workloads = list(dict.fromkeys(s.workload for s in found))
    shown = {s.workload for s in found if s.is_step} | {workloads[0]}
    for i, workload in enumerate(workloads):
        mine = [s for s in found if s.workload == workload]
        if workload in shown:
            chapter.blocks.append(picture(results, found, workload, f"overhead{i}"))
            chapter.blocks += _host_alone(results, mine, f"host{i}")
        chapter.blocks.append(_table(results, mine))
    chapter.blocks += [*_balance(results, found), *_stages(results), *_others(results)]
    return chapter


def picture(results: Results, found: list[Stack], workload: str, key: str) -> Plot:
    """The stacks of one workload as bars; ``key`` is the plot's own on the page."""
    mine = [s for s in found if s.workload == workload]
    bars = {results.label(s.source): {p.layer: p.estimate.value for p in s.parts} for s in mine}
    alt = "; ".join(f"{results.label(s.source)}: {s.whole.text}, of it {shares(s)}" for s in mine)
    title = "Whose microseconds: one " + (workload if mine[0].is_step else f"PyTorch op, {workload}")
    return Plot(title, plots.stacked(key, bars, alt, colours=_COLOURS), alt)


def _host_alone(results: Results, found: list[Stack], key: str) -> Iterable[Plot]:
    """The layers above the GPU and its queue, where these leave little to see of them."""
    bars = {}
    for s in found:
        parts = {p.layer: p.estimate.value for p in s.parts if p.layer not in (DEVICE, QUEUE, DEVICE_AND_QUEUE)}
        if s.threads and sum(parts.values()) < s.whole.value / 4:
            bars[results.label(s.source)] = parts
    if bars:
        alt = "; ".join(f"{name}: " + ", ".join(f"{p} {number(v)} µs" for p, v in bar.items()) for name, bar in bars.items())
        yield Plot("The host’s part of it alone", plots.stacked(key, bars, alt, colours=_COLOURS), alt)


def shares(stack: Stack) -> str:
    """In words."""
    return ", ".join(f"{part.layer} {stack.share_text(part)}" for part in stack.parts)


def _table(results: Results, found: list[Stack]) -> Table:
    what = "one " + (found[0].workload if found[0].is_step else f"PyTorch op, {found[0].workload}")
    table = Table(
        f"Layers of {what}",
        ["target", "layer", "is", "time", "share"],
        note="Every figure is a slope over n or a difference of slopes, whose interval takes the worst corners. Where it "
        "includes 0, no difference was seen. The last row was measured as a whole.",
        numeric=3,
    )
    for stack in found:
        label = results.label(stack.source)
        for i, part in enumerate(stack.parts):
            table.add(label if i == 0 else "", part.layer, part.how, _value(part), stack.share_text(part))
        table.add("", "all", "from Python until done", stack.whole, "100 %")
    return table


def _value(part: Part) -> Cell:
    verdict = part.verdict
    detail = f"{part.estimate.detail}; {verdict}" if verdict else part.estimate.detail
    return Cell(part.estimate.text, detail, "bad" if verdict.startswith("negative") else "quiet" if verdict else "")


def _balance(results: Results, found: list[Stack]) -> Iterable[Block]:
    table = Table(
        "Balance of host and GPU",
        ["target and workload", MAIN, ENCODING, "GPU", "host ÷ GPU", "bound by", "in a stream"],
        note="In a stream of work recording (main thread), encoding (a thread of its own) and the GPU go on at once, and "
        "the slowest of the three decides. Host ÷ GPU takes the busier thread: above 1 the GPU waits for the host. In a "
        "stream each decode step has a submit of its own.",
    )
    for s in found:
        if not s.threads:
            continue
        ratio = s.balance
        name = Cell(results.label(s.source), s.workload)
        times = [_brief(e) for e in (*(s.threads.get(n) for n in (MAIN, ENCODING, DEVICE)), ratio)]
        table.add(name, *times, s.verdict or "–", _brief(s.overlapped))
    if table.rows:
        yield table


def _brief(e: Estimate | None) -> Cell:
    """Without the number of samples, which the tables of layers have."""
    return Cell(e.text, e.detail.partition(", n")[0]) if e else Cell.of(None)


def _stages(results: Results) -> Iterable[Block]:
    """What the core's own counters say."""
    found: dict[tuple[Source, str], dict[str, Series]] = {}
    for s in results.find("overhead", method=STAGES, unit="us"):
        found.setdefault((s.source, s.now.workload), {})[s.now.metric] = s
    if not found:
        return
    table = Table(
        "What the C++ core does in a call",
        ["target and op", "key of the call", "output", "recording", "stack", "sum"],
        note="By counters in the core, which cost about 25 ns each and so are on in these samples alone. The rest of the "
        "layer C++ is PyTorch’s dispatcher, and encoding less the library’s calls.",
    )
    for (source, workload), stages in found.items():
        values = {name: Estimate.of(stages[name].samples, "us") for name in STAGE_ORDER if name in stages}
        total = f"{number(sum(e.value for e in values.values()))} µs"
        table.add(Cell(results.label(source), workload), *(_brief(values.get(name)) for name in STAGE_ORDER), total)
    yield table


def _others(results: Results) -> list[Block]:
    """What other instruments call overhead."""
    others = [s for s in results.find("overhead") if s.now.method not in _KNOWN]
    if not others:
        return []
    table = Table("Further figures", ["target, workload and method", "metric", "median", "note"], numeric=2)
    for s in others:
        settings = ", ".join(f"{k} {v}" for k, v in sorted(s.now.parameters.items()))
        name = f"{results.label(s.source)}: {s.now.workload}, {s.now.method}" + (f" ({settings})" if settings else "")
        table.add(name, s.now.metric, Estimate.of(s.samples, s.now.unit), "; ".join(s.now.notes))
    return [table]
