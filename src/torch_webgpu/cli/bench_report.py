"""``torch-webgpu bench report``, ``validate`` and ``import``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from .bench_run import extra
from .console import err, fail, out

Files = Annotated[list[Path], typer.Argument(metavar="FILE|DIR...", help="Result files, or folders of them.")]


class Form(str, Enum):
    """Files that can be imported."""

    csv = "csv"
    json = "json"


@extra()
def report(
    files: Files, out_folder: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("report")
) -> None:
    """Makes one HTML page and one Markdown file of result files; works offline, nothing is loaded."""
    from ..bench.report.build import write
    from ..bench.results import load
    from ..bench.schema import ResultError

    try:
        with err.status("Reading and drawing…"):
            results = load(files)
            for refused in results.refused:
                err.print(f"[yellow]left out:[/] {escape(str(refused))}", soft_wrap=True)
            pages = write(results, out_folder)
    except (ResultError, OSError) as e:
        raise fail(str(e)) from None
    for page in pages:
        out.print(f"[bold]{escape(str(page))}[/]", soft_wrap=True)


@extra()
def validate(files: Files) -> None:
    """Checks result files: 1 is returned where one is unknown, corrupt, was edited, or cannot be true."""
    from ..bench.bounds import all_impossible
    from ..bench.results import files as found_in
    from ..bench.schema import ResultError, read

    table = Table("file", "state", "experiments", "targets", "quantities", "samples")
    table.columns[0].overflow = "fold"
    refused = []
    try:
        paths = found_in(files)
    except ResultError as e:
        raise fail(str(e), 1) from None
    for path in paths:
        try:
            run = read(path)
        except ResultError as e:
            refused.append(e)
            continue
        refused += [ResultError(f"{path}: {why}") for why in all_impossible(run)]
        state = "complete" if run.complete else "[yellow]interrupted[/]"
        state += ", imported" if run.origin == "imported" else ""
        experiments = ", ".join(dict.fromkeys(m.experiment for m in run.measurements))
        samples = sum(len(m.samples) for m in run.measurements)
        counts = str(len(run.measurements)), str(samples)
        table.add_row(escape(str(path)), state, experiments, str(len(run.targets)), *counts)
    if table.row_count:
        out.print(table)
    for error in refused:
        err.print(f"[bold red]refused:[/] {escape(str(error))}", soft_wrap=True)
    if refused:
        raise typer.Exit(1)


@extra()
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table of another instrument's figures.")],
    form: Annotated[Form | None, typer.Option("--format", help="Of the file.", show_default="its ending")] = None,
    target: Annotated[Path | None, typer.Option("--out", help="Result file.", show_default="FILE.imported.json")] = None,
) -> None:
    """Makes a result file of another instrument's table; every report marks it as imported.

    Columns: experiment, workload, method, metric, unit, value, kind, implementation, adapter; docs/instrument.md lists the
    optional ones.
    """
    from ..bench.importing import import_file
    from ..bench.schema import ResultError, write

    ending = file.suffix.lower().removeprefix(".")
    if form is None and ending not in Form.__members__:
        raise fail(f"{file}: its ending says no format; give --format csv or --format json")
    path = target or file.with_suffix(".imported.json")
    if path.exists():
        raise fail(f"{path} exists; choose another name with --out, or delete it")
    try:
        run = import_file(file, form.value if form else ending)  # type: ignore[arg-type]
        write(run, path)
    except (ResultError, OSError) as e:
        raise fail(str(e), 1) from None
    samples = sum(len(m.samples) for m in run.measurements)
    out.print(f"{len(run.measurements)} quantities, {samples} samples: [bold]{escape(str(path))}[/]", soft_wrap=True)
