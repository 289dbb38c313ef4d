"""``torch-webgpu bench overhead``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from .bench_dispatch import Implementations, names_of
from .bench_models import chosen
from .bench_run import RESULTS, AsJson, Out, Quick, extra, measure, options
from .console import fail, out, quiet

if TYPE_CHECKING:
    from ..bench.schema import Run
    from ..bench.session import Session


def overhead(
    implementation: Implementations = None,
    model: Annotated[str, typer.Option(help="Shape of the decode step's model; its weights are random.")] = "tiny",
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """Where the time of a tensor op and of a decode step goes: GPU, driver, API, C++, Python; CUDA's beside it."""
    quiet()  # before anything imports transformers
    with extra():
        from ..bench.models import SHAPES
    if len(chosen(model, tuple(SHAPES), "--model")) > 1:
        raise fail("--model: one is measured at a time.")
    names = names_of(implementation)

    def run(session: Session) -> None:
        from ..bench.overhead import overhead

        overhead(session, names, model)

    given = [f"--implementation={name}" for name in names] + options(model=model)
    measure("overhead", run, quick, as_json, folder, given, _table)


def _table(run: Run) -> None:
    """A table a stack."""
    from ..bench import summary
    from ..bench.report.document import number
    from ..bench.report.stacks import stacks
    from ..bench.results import Results

    results = Results([(Path("overhead"), run)])
    found = stacks(results)
    if not found:  # only the driver that does nothing, or an early interrupt
        out.print(summary.table(run))
    for stack in found:
        title = f"[bold]{escape(stack.workload)}, {escape(results.label(stack.source))}[/]"
        table = Table("layer", "µs", "95 % interval", "share", "is", box=None, title=title, title_justify="left")
        for column in table.columns[1:4]:
            column.justify = "right"
        for part in stack.parts:
            e = part.estimate
            between = f"{number(e.low)} to {number(e.high)}"
            table.add_row(
                part.layer, number(e.value), between, stack.share_text(part), part.how, style="" if part.told else "dim"
            )
        table.add_row("all", number(stack.whole.value), stack.whole.detail.partition(", n")[0], "", "wall from Python")
        out.print(table)
        if balance := stack.balance_text():
            out.print(balance, soft_wrap=True)
        out.print()
