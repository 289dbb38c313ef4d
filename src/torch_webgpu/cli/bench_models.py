"""``torch-webgpu bench fusion``, ``llm`` and ``vision``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from .bench_run import RESULTS, AsJson, Out, Quick, extra, measure, options
from .console import fail, out, quiet

if TYPE_CHECKING:
    from ..bench.schema import Run
    from ..bench.session import Session

Runs = Annotated[int, typer.Option(min=2, help="Samples of each way to run a model.")]
Warmup = Annotated[int, typer.Option(min=0, help="Samples before those, which count in no figure.")]
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


# ---------------------------------------------------------------------------------------------------- fusion


def fusion(
    impl: Implementations = "wgpu,dawn",
    only: Annotated[str, typer.Option(help="Only cases with this in their name.")] = "",
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """Parts of a model with few launches and with many, by hand and by the compiler, checked and timed in turn."""
    quiet()
    with extra():
        from ..bench.fusion import run_all
        from ..bench.fusion_cases import NAMES
    if not any(only in name for name in NAMES):
        raise fail(f"--only: no computation has {only!r} in its name; there are {', '.join(NAMES)}.")
    names = chosen(impl, IMPLEMENTATIONS, "--impl")
    given = options(impl=impl, only=only)
    measure("fusion", lambda session: run_all(session, names, only), quick, as_json, folder, given, fusion_table)


def fusion_table(run: Run) -> None:
    """Computations with one wait a call, variants side by side."""
    from ..bench.report.document import number, p_value
    from ..bench.report.fusion import groups
    from ..bench.results import Results
    from ..bench.stats import summarise

    for g in groups(Results([(Path("fusion"), run)])):
        if not g.together:
            continue
        place = g.source.target.implementation if g.source.target.kind in ("webgpu", "browser") else g.source.target.kind
        title = f"[bold]{escape(g.title)}, {place}[/]"
        names = ("variant", "launches", "median µs", "mean", "gain", "of medians", "p", "d")
        table = Table(*names, box=None, title=title, title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for variant, series in g.times.items():
            s, c = summarise(series.samples), g.compared(variant)
            row = [variant, str(g.dispatches.get(variant, "–")), number(s.median), number(s.mean)]
            if c is None:
                table.add_row(*row, "–", "–", "–", "–")
                continue
            turned = (c.ratio - 1) * (c.median_ratio - 1) < 0
            medians = f"[red]{number(c.median_ratio)}[/]" if turned else number(c.median_ratio)
            table.add_row(*row, number(c.ratio), medians, p_value(c.p), number(c.d))
        out.print(table)
    out.print(
        "[dim]One wait a call. Gain: of means, over its kind's variant with the most launches; Welch's p, Cohen's d.[/]"
    )


# ---------------------------------------------------------------------------------------------------- language models


def llm(
    models: Annotated[
        str | None,
        typer.Option(
            help="Of Qwen2.5-0.5B, Qwen2.5-1.5B (random weights), SmolLM2-135M, tiny.", show_default="all; tiny if quick"
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="One with weights instead: a hub name, folder or GGUF file.")] = None,
    on: Annotated[str, typer.Option(help="Of webgpu, cpu, cuda, mps, onnxruntime.")] = "webgpu,cpu,cuda,mps,onnxruntime",
    impl: Implementations = "wgpu,dawn",
    protocols: Annotated[str, typer.Option(help="Of paper, modern, compile and kernels.")] = "paper,modern,compile,kernels",
    fusions: Annotated[str, typer.Option("--fusion", help="Levels of the compiler.")] = "none,pointwise,full",
    dtypes: Annotated[str, typer.Option(help="Of the modern protocol.")] = "float32,float16,int8,int4",
    contexts: Annotated[str, typer.Option(help="Tokens of its prompts.")] = "128,512,2048",
    new: Annotated[int, typer.Option(min=2, help="Tokens that are generated.")] = 50,
    layers: Annotated[int | None, typer.Option(min=1, help="The first so many alone, for small machines.")] = None,
    runs: Runs = 30,
    warmup: Warmup = 5,
    seconds: Annotated[float, typer.Option(min=0, help="For a context of the modern protocol; ten samples at least.")] = 10,
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """Language models: the paper's protocol, prefill and decode apart, compiling, launches by kind."""
    quiet()
    with extra():
        from ..bench.llm import LEVELS, PLACES, PROTOCOLS, Settings, run_all
        from ..bench.models import NAMES

    settings = Settings(
        models=(Path(model).stem or model,) if model else _models(models, NAMES, quick),
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
        seconds=seconds,
    )
    if quick:
        settings = settings.reduced()
    given = options(
        models=models if model is None else None, model=model, on=on, impl=impl, protocols=protocols, fusion=fusions,
        dtypes=dtypes, contexts=contexts, new=new, layers=layers, runs=runs, warmup=warmup,
        seconds=seconds,
    )  # fmt: skip

    def run(session: Session) -> None:
        settings.check()
        run_all(settings, session)

    measure("llm", run, quick, as_json, folder, given, models_table)


def _models(names: str | None, known: Sequence[str], quick_run: bool) -> tuple[str, ...]:
    """What was asked for, or all but the tiny one, which is for quick runs."""
    if names is not None:
        return chosen(names, known, "--models")
    return tuple(name for name in known if (name == "tiny") == quick_run)


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise fail(f"--contexts: {text!r} is no list of numbers of tokens, like 128,512.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def models_table(run: Run) -> None:
    """One row a way to run a model, one column a metric."""
    from ..bench.names import DISPATCHES, LAUNCH, PROMPT_READY, RATE, STEP_READY, TOKEN, TTFT, WALL
    from ..bench.report.document import number
    from ..bench.stats import summarise

    metrics = {RATE: "tok/s", TTFT: "first ms", TOKEN: "token ms", WALL: "ms", DISPATCHES: "launches"}
    metrics |= {PROMPT_READY: "prompt ready s", STEP_READY: "step ready s", LAUNCH: "a launch µs"}
    tables: dict[str, dict[tuple[str, ...], dict[str, str]]] = {}
    for m in run.measurements:
        if m.metric in metrics:
            target, told = run.target_of(m), ("dtype", "quantize", "fusion", "cache", "plans", "kernel", "count")
            rest = ", ".join(f"{k} {v}" for k, v in m.parameters.items() if k not in told)
            values = [str(m.parameters[k]) for k in told if k in m.parameters]
            place = target.implementation if target.kind == "webgpu" else f"{target.implementation} {target.kind}"
            row = (place, m.method, " ".join(values))
            tables.setdefault(f"{m.workload} ({rest})", {}).setdefault(row, {})[m.metric] = number(
                summarise(m.samples).median
            )
    for title, rows in tables.items():
        present = [name for name in metrics if any(name in row for row in rows.values())]
        table = Table(
            "on", "method", "dtype, fusion, cache", box=None, title=f"[bold]{escape(title)}[/]", title_justify="left"
        )
        for name in present:
            table.add_column(metrics[name], justify="right")
        for key, found in rows.items():
            table.add_row(*map(escape, key), *(found.get(name, "–") for name in present))
        out.print(table)
    out.print("[dim]Medians; the file has every sample, and notes.[/]")


# ---------------------------------------------------------------------------------------------------- vision


def vision(
    models: Annotated[
        str, typer.Option(help="Of EfficientNet-Lite0, ViT-B/16 and UNet.")
    ] = "EfficientNet-Lite0,ViT-B/16,UNet",
    on: Annotated[str, typer.Option(help="Of webgpu, cpu, cuda, mps.")] = "webgpu,cpu,cuda,mps",
    impl: Implementations = "wgpu,dawn",
    dtypes: Annotated[str, typer.Option(help="Of float32 and float16.")] = "float32,float16",
    runs: Runs = 30,
    warmup: Warmup = 5,
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """Vision models, op by op and compiled, on all that can run them here; outputs are checked first."""
    quiet()
    with extra():
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
    given = options(models=models, on=on, impl=impl, dtypes=dtypes, runs=runs, warmup=warmup)
    measure("vision", lambda session: run_all(wanted, session), quick, as_json, folder, given, models_table)
