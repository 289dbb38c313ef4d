"""``torch-webgpu bench fusion``, ``llm`` and ``vision``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from .console import err, fail, out, quiet, reported

if TYPE_CHECKING:
    from ..bench.schema import Run
    from ..bench.session import Session

Quick = Annotated[bool, typer.Option(help="Few samples of small sizes, to see whether it works.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result file and nothing else.")]
Runs = Annotated[int, typer.Option(min=2, help="Samples of each variant.")]
Warmup = Annotated[int, typer.Option(min=0, help="Samples before those, which count in no figure.")]
Limit = Annotated[float | None, typer.Option(min=1, metavar="SECONDS", help="End any one variant after this.")]
Implementations = Annotated[str, typer.Option("--impl", help="Implementations of WebGPU, commas between.")]
IMPLEMENTATIONS = ("wgpu", "dawn")


def chosen(text: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    """The names in a list with commas, in its order; the program ends with an error for one that is not known."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in known:
            raise fail(f"{option}: {name!r} is not one of {', '.join(known)}.")
    if not names:
        raise fail(f"{option}: nothing is chosen; there are {', '.join(known)}.")
    return names


@contextmanager
def measuring(path: Path, quick_run: bool, as_json: bool, show: Callable[[Run], None]) -> Iterator[Session]:
    """A session that ends with a table (or the file itself as JSON), and says how to go on after an interrupt."""
    quiet()
    from ..bench.fusion_cases import WrongResultError
    from ..bench.session import session

    try:
        with reported(), session(path, quick_run) as current:
            yield current
    except (FileExistsError, ValueError, WrongResultError) as e:
        raise fail(str(e)) from None
    run = current.recorder.run
    if as_json:
        typer.echo(path.read_text() if path.exists() else "{}", nl=False)
    else:
        show(run)
        _print_absent(run)
        err.print(f"[dim]{len(run.measurements)} measurements in {escape(str(path))}[/]", soft_wrap=True)
    if current.interrupted:
        err.print("[yellow]Interrupted:[/] what was measured is kept; the same command goes on from there.", soft_wrap=True)
        raise typer.Exit(130)


def _print_absent(run: Run) -> None:
    reasons: dict[str, list[str]] = {}
    for a in run.absent:
        size = f" {a.parameters['fusion']}" if "fusion" in a.parameters else ""
        reasons.setdefault(a.reason, []).append(f"{a.workload} {a.method}{size} ({a.implementation})")
    for reason, rows in reasons.items():
        names = ", ".join(dict.fromkeys(rows))
        shown = names if len(names) < 160 else f"{names[:150]}… ({len(rows)} in all)"
        err.print(f"[yellow]not measured:[/] {escape(shown)}: {escape(reason)}", soft_wrap=True)


# ---------------------------------------------------------------------------------------------------- fusion


def fusion(
    target: Annotated[Path, typer.Option("--out", help="Result file.")] = Path("fusion.json"),
    runs: Runs = 30,
    warmup: Warmup = 5,
    calls: Annotated[int, typer.Option(min=2, help="Calls of the mode with one wait for many.")] = 50,
    only: Annotated[str, typer.Option(help="Only cases with this in their name.")] = "",
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Parts of a model with few launches and with many, by hand and by the compiler, checked and timed in turn."""
    with measuring(target, quick, as_json, _fusion_table) as current:
        _fusion(current, *((3, 1, 3) if quick else (runs, warmup, calls)), only)


def _fusion(current: Session, runs: int, warmup: int, calls: int, only: str) -> None:
    with err.status("Loading PyTorch…") as status:
        from .. import _autoload

        _autoload()
        from ..bench.fusion import FusionBench
        from ..bench.fusion_cases import cases
        from ..bench.targets import missing, torch_target, webgpu_target

        recorder, webgpu = current.recorder, webgpu_target()
        bench = FusionBench(recorder, warmup, runs, calls)
        on = [(webgpu, "webgpu")] + ([] if missing("cuda") else [(torch_target("cuda"), "cuda")])
        made = [case for make in cases(current.quick, webgpu.adapter_kind == "cpu") if only in (case := make()).name]
        if not made:
            raise fail(f"--only: no case has {only!r} in its name.")
        for i, case in enumerate(made):
            for place, kind in on:
                status.update(f"{case.title} on {kind} ({i + 1} of {len(made)})…")
                bench.run(case, recorder.target(place), kind)
        if why := missing("cuda"):
            err.print(f"[dim]no control on CUDA: {escape(why)}[/]", soft_wrap=True)


def _fusion_table(run: Run) -> None:
    from ..bench.report.document import number, p_value
    from ..bench.report.fusion import groups
    from ..bench.results import Results
    from ..bench.stats import summarise

    table = Table("computation", "variant", "dispatches", "median µs", "mean µs", "gain", "of medians", "p", "d", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for g in groups(Results([(Path("fusion"), run)])):
        if not g.together:
            continue
        for variant, series in g.times.items():
            s, c = summarise(series.samples), g.compared(variant)
            place = g.source.target.implementation if g.source.target.kind == "webgpu" else g.source.target.kind
            row = [f"{g.title}, {place}", variant, str(g.dispatches.get(variant, "–")), number(s.median), number(s.mean)]
            if c is None:
                table.add_row(*row, "–", "–", "–", "–")
                continue
            turned = (c.ratio - 1) * (c.median_ratio - 1) < 0
            medians = f"[red]{number(c.median_ratio)}[/]" if turned else number(c.median_ratio)
            table.add_row(*row, number(c.ratio), medians, p_value(c.p), number(c.d))
    out.print(table)
    out.print(
        "[dim]One wait a call. Gain: of means, over the variant of its kind with the most dispatches; Welch's p, Cohen's d.[/]"
    )


# ---------------------------------------------------------------------------------------------------- language models


def llm(
    target: Annotated[Path, typer.Option("--out", help="Result file.")] = Path("llm.json"),
    models: Annotated[str, typer.Option(help="Of Qwen2.5-0.5B, Qwen2.5-1.5B (random weights), SmolLM2-135M, tiny.")] = (
        "Qwen2.5-0.5B,Qwen2.5-1.5B,SmolLM2-135M"
    ),
    model: Annotated[str | None, typer.Option(help="One with weights instead: a hub name, folder or GGUF file.")] = None,
    on: Annotated[str, typer.Option(help="Of webgpu, cpu, cuda, mps, onnxruntime.")] = "webgpu,cpu,cuda,mps,onnxruntime",
    impl: Implementations = "wgpu,dawn",
    protocols: Annotated[str, typer.Option(help="Of paper and modern.")] = "paper,modern",
    fusions: Annotated[str, typer.Option("--fusion", help="Levels of the compiler.")] = "none,pointwise,full",
    dtypes: Annotated[str, typer.Option(help="Of the modern protocol.")] = "float32,float16,int8,int4",
    contexts: Annotated[str, typer.Option(help="Tokens of its prompts.")] = "128,512,2048",
    new: Annotated[int, typer.Option(min=2, help="Tokens that are generated.")] = 50,
    layers: Annotated[int | None, typer.Option(min=1, help="The first so many alone, for small machines.")] = None,
    runs: Runs = 30,
    warmup: Warmup = 5,
    limit: Limit = None,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Language models: the paper's protocol, and prefill and decode apart, on all that can run them here."""
    from ..bench.llm import LEVELS, PLACES, PROTOCOLS, Settings
    from ..bench.models import NAMES

    settings = Settings(
        models=(Path(model).stem or model,) if model else chosen(models, NAMES, "--models"),
        path=model,
        implementations=chosen(impl, IMPLEMENTATIONS, "--impl"),
        places=chosen(on, PLACES, "--on"),
        protocols=chosen(protocols, PROTOCOLS, "--protocols"),
        levels=chosen(fusions, LEVELS, "--fusion"),
        dtypes=chosen(dtypes, ("float32", "float16", "bfloat16", "int8", "int4"), "--dtypes"),
        contexts=_numbers(contexts),
        new=8 if quick else new,
        warmup=1 if quick else warmup,
        runs=3 if quick else runs,
        layers=2 if quick and layers is None else layers,
    )
    if quick:
        settings = settings.reduced()
    with measuring(target, quick, as_json, _models_table) as current:
        settings.check()
        _run_jobs(current, settings, limit)


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise fail(f"--contexts: {text!r} is no list of numbers of tokens, like 128,512.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _run_jobs(current: Session, settings: Any, limit: float | None) -> None:
    from ..bench.llm import run_all

    with err.status("…") as status:
        run_all(settings, current.recorder, _announcer(status), limit=limit)


def _announcer(status: Any) -> Callable[[int, int, Any], None]:
    return lambda i, n, job: status.update(f"{escape(job.title)} ({i + 1} of {n})…")


def _models_table(run: Run) -> None:
    """One row a way to run a model, one column a metric."""
    from ..bench.names import DISPATCHES, RATE, TOKEN, TTFT, WALL
    from ..bench.report.document import number
    from ..bench.stats import summarise

    metrics = {RATE: "tok/s", TTFT: "first token, ms", TOKEN: "token, ms", WALL: "ms", DISPATCHES: "dispatches"}
    rows: dict[Any, dict[str, str]] = {}
    for m in run.measurements:
        if m.metric in metrics:
            where = f"{run.target_of(m).kind} {run.target_of(m).implementation}"
            setting = ", ".join(str(v) if k in ("dtype", "quantize") else f"{k} {v}" for k, v in m.parameters.items())
            rows.setdefault((m.workload, where, m.method, setting), {})[m.metric] = number(summarise(m.samples).median)
    present = [name for name in metrics if any(name in row for row in rows.values())]
    table = Table("model", "on", "method", "", *(metrics[name] for name in present), box=None)
    for key, row in rows.items():
        table.add_row(*(escape(str(part)) for part in key), *(row.get(name, "–") for name in present))
    out.print(table)
    out.print("[dim]Medians; the file has every sample, and notes.[/]")


# ---------------------------------------------------------------------------------------------------- vision


def vision(
    target: Annotated[Path, typer.Option("--out", help="Result file.")] = Path("vision.json"),
    models: Annotated[
        str, typer.Option(help="Of EfficientNet-Lite0, ViT-B/16 and UNet.")
    ] = "EfficientNet-Lite0,ViT-B/16,UNet",
    on: Annotated[str, typer.Option(help="Of webgpu, cpu, cuda, mps.")] = "webgpu,cpu,cuda,mps",
    impl: Implementations = "wgpu,dawn",
    dtypes: Annotated[str, typer.Option(help="Of float32 and float16.")] = "float32,float16",
    runs: Runs = 30,
    warmup: Warmup = 5,
    limit: Limit = None,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Vision models, op by op and compiled, on all that can run them here; outputs are checked first."""
    quiet()
    from ..bench.vision import PLACES, TOLERANCE, jobs, run_all
    from ..bench.vision_models import MODELS

    wanted = list(
        jobs(
            chosen(models, tuple(MODELS), "--models"),
            chosen(impl, IMPLEMENTATIONS, "--impl"),
            chosen(on, PLACES, "--on"),
            chosen(dtypes, tuple(TOLERANCE), "--dtypes")[: 1 if quick else None],
            quick,
            1 if quick else warmup,
            3 if quick else runs,
        )
    )
    with measuring(target, quick, as_json, _models_table) as current, err.status("…") as status:
        run_all(wanted, current.recorder, _announcer(status), limit=limit)
