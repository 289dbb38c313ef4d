"""``torch-webgpu bench all``: every experiment into one folder, and the report of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from .bench_report import report
from .bench_run import RESULTS, Out, Quick, extra
from .console import err, out

if TYPE_CHECKING:
    from ..bench.schema import Run

#: The experiments in order, and the options that a campaign gives beside ``--quick`` and ``--out``. A process each: one can
#: load one WebGPU library only, and a driver that crashes ends only that part.
PARTS: dict[str, tuple[str, ...]] = {"dispatch": (), "overhead": (), "fusion": (), "llm": (), "vision": (), "power": ()}
#: What they are when it has to be quick: five minutes on two cores and a rasteriser.
QUICK_PARTS: dict[str, tuple[str, ...]] = {
    **PARTS,
    "llm": ("--protocols", "modern", "--on", "webgpu,cpu,cuda,mps"),
    "vision": ("--models", "EfficientNet-Lite0", "--on", "webgpu,cpu,cuda,mps"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Attributes:
        path: its result file; None where it left none.
        kept: whether the file was complete before.
        code: exit status; 0 is a part that measured something.
    """

    part: str
    path: Path | None
    run: Run | None
    kept: bool = False
    code: int = 0
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """For people."""
        if self.kept:
            return "kept"
        return "measured" if self.code == 0 else f"[red]failed (exit status {self.code})[/]"


def all_(
    quick: Quick = False,
    folder: Out = RESULTS,
    only: Annotated[str, typer.Option(help="Only these parts, commas between.", show_default="all")] = "",
) -> None:
    """Every experiment into one folder, then the report of it. What is complete there is kept, what was interrupted goes on.

    1 is returned where a part failed; the others are measured and reported all the same.
    """
    from .bench_models import chosen

    names = chosen(only, tuple(PARTS), "--only") if only else tuple(PARTS)
    with extra():
        from ..bench import schema  # noqa: F401  # all that is missing is told before an hour of measuring
    outcomes = [_part(name, quick, folder) for name in names]
    _summary(outcomes)
    if any(o.run is not None for o in outcomes):
        report([folder], folder / "report")
    if failed := [o.part for o in outcomes if o.code]:
        err.print(f"[bold red]error:[/] failed: {', '.join(failed)}; the same command tries them again.", soft_wrap=True)
        raise typer.Exit(1)


def complete(folder: Path, part: str, quick: bool) -> tuple[Path, Run] | None:
    """The newest complete run of a part in a folder, as thorough as asked for."""
    found = [(path, run) for path, run in _runs(folder) if run.complete and _is(run, part, quick) and run.measurements]
    return max(found, key=lambda pair: pair[1].created, default=None)


def _is(run: Run, part: str, quick: bool) -> bool:
    return run.origin == "measured" and run.command[1:3] == ["bench", part] and ("--quick" in run.command) == quick


def _runs(folder: Path) -> list[tuple[Path, Run]]:
    from ..bench.schema import ResultError, read

    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append((path, read(path)))
        except ResultError:
            continue  # the report says so
    return found


def _part(name: str, quick: bool, folder: Path) -> Outcome:
    if (former := complete(folder, name, quick)) is not None:
        return Outcome(name, *former, kept=True)
    err.print(f"[bold]bench {name}[/]")
    options = (*QUICK_PARTS[name], "--quick") if quick else PARTS[name]
    start = time.perf_counter()
    code = run_part([name, *options, "--out", str(folder)])
    seconds = time.perf_counter() - start
    found = [(path, run) for path, run in _runs(folder) if _is(run, name, quick)]
    path, run = max(found, key=lambda pair: pair[1].created, default=(None, None))
    return Outcome(name, path, run, code=code, seconds=seconds)


def run_part(arguments: Sequence[str]) -> int:
    """Runs ``torch-webgpu bench`` with arguments, its notes and progress shown; returns the exit status.

    Raises:
        typer.Exit: where the user interrupted it.
    """
    command = [sys.executable, "-m", f"{__package__}", "bench", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()  # it was interrupted too, and says what is kept
        raise typer.Exit(130) from None
    if code == 130:
        raise typer.Exit(130)
    return code


def _summary(outcomes: Sequence[Outcome]) -> None:
    table = Table("part", "state", "seconds", "quantities", "samples", "notes", "file", box=None)
    for column in table.columns[2:6]:
        column.justify = "right"
    table.columns[-1].overflow = "fold"
    for o in outcomes:
        measurements = o.run.measurements if o.run else []
        samples = sum(len(m.samples) for m in measurements)
        counts = str(len(measurements)), str(samples), str(len(o.run.notes) if o.run else 0)
        seconds = "" if o.kept else f"{o.seconds:.0f}"
        table.add_row(o.part, o.state, seconds, *counts, escape(str(o.path or "–")))
    out.print(table)
