"""``torch-webgpu bench``: the instrument's experiments. This module only parses; an experiment is a module of ``bench``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .console import err, fail, out, reported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..bench.schema import Experiment
    from ..bench.session import Session

app = typer.Typer(help="Measures what WebGPU costs, and keeps raw samples.", no_args_is_help=True)

Quick = Annotated[bool, typer.Option("--quick", help="Few samples of few cases: to see that it works.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document and nothing else.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the result files.")]
RESULTS = Path("bench-results")

#: Modules of the ``bench`` extra.
_EXTRA = ("pydantic", "psutil", "scipy", "matplotlib")


@contextmanager
def extra() -> Iterator[None]:
    """Inside, a missing module of the ``bench`` extra is told in one line with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise fail(f"{e.name} is not installed; the instrument needs: pip install 'torch-webgpu[bench]'") from None


def measure(
    experiment: Experiment,
    run: Callable[[Session], None],
    quick: bool,
    as_json: bool,
    folder: Path,
    options: Sequence[str] = (),
) -> None:
    """Runs an experiment, and prints its table, or with ``as_json`` its rows.

    Args:
        run: does the measuring.
        options: those of the command line that change what is measured.
    """
    with extra(), reported():
        from ..bench import summary  # noqa: F401 - what is missing shows now, not after the measuring
        from ..bench.session import Session

        session = Session(experiment, folder, quick, options, None if as_json else err)
        if session.resumed and not as_json:
            err.print(f"[dim]Going on with {escape(str(session.recorder.path))}.[/]", soft_wrap=True)
        try:
            with session.measuring():
                run(session)
        except KeyboardInterrupt:
            _tell_interrupt(session)
            raise
        _show(session, as_json)
    if not session.run.measurements:
        raise typer.Exit(1)


def _tell_interrupt(session: Session) -> None:
    kept = len(session.run.measurements)
    where = f"{kept} measurements are kept in {session.recorder.path}" if kept else "nothing was measured yet"
    err.print(f"[yellow]Interrupted: {escape(where)}; the same command goes on from there.[/]", soft_wrap=True)


def _show(session: Session, as_json: bool) -> None:
    from ..bench.summary import rows, table

    if as_json:
        document: dict[str, Any] = {
            "file": str(session.recorder.path),
            "notes": session.run.notes,
            "rows": [row.to_dict() for row in rows(session.run)],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    out.print(table(session.run))
    for text in session.run.notes:
        out.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    out.print(f"[dim]{escape(str(session.recorder.path))}[/]", soft_wrap=True)


class Implementation(str, Enum):
    """WebGPU libraries; ``dawn-null`` is Dawn's driver that does nothing."""

    wgpu = "wgpu"
    dawn = "dawn"
    null = "dawn-null"


Implementations = Annotated[
    list[Implementation] | None, typer.Option(help="Only these; repeatable.", show_default="all installed")
]


@app.command()
def dispatch(
    implementation: Implementations = None,
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """What a dispatch costs by every way to make it, on every implementation and adapter."""
    names = sorted({i.value for i in implementation or ()})

    def run(session: Session) -> None:
        from ..bench.dispatch import dispatch

        dispatch(session, names)

    options = [f"--implementation={name}" for name in names]
    measure("dispatch", run, quick, as_json, folder, options)


class ModelSize(str, Enum):
    """Shapes of the decode step's model; ``tiny`` is two layers of SmolLM2-135M."""

    tiny = "tiny"
    half = "0.5B"


@app.command()
def overhead(
    implementation: Implementations = None,
    model_size: Annotated[ModelSize, typer.Option(help="Shape of the decode step's model.")] = ModelSize.tiny,
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """Where the time of a tensor op and of a decode step goes: API, driver, GPU, C++, Python."""
    names = sorted({i.value for i in implementation or ()})

    def run(session: Session) -> None:
        from ..bench.overhead import overhead

        overhead(session, names, model_size.value)

    options = [f"--implementation={name}" for name in names] + [f"--model-size={model_size.value}"]
    measure("overhead", run, quick, as_json, folder, options)
