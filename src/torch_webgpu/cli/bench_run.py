"""What the measuring commands share: options, the beginning and end of a session, the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .console import err, fail, out, reported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..bench.schema import Experiment, Run
    from ..bench.session import Session

Quick = Annotated[bool, typer.Option("--quick", help="Few samples of few cases: to see that it works.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document and nothing else.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the result files.")]
RESULTS = Path("bench-results")

#: Modules of the ``bench`` extra.
_EXTRA = ("pydantic", "psutil", "scipy", "matplotlib", "cryptography")


@contextmanager
def extra() -> Iterator[None]:
    """Inside, a missing module of the ``bench`` extra is told in one line with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise fail(f"{e.name} is not installed; the instrument needs: pip install 'torch-webgpu[bench]'") from None


def options(**values: Any) -> list[str]:
    """A command line's options, for the record."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value not in (None, "")]


def measure(
    experiment: Experiment,
    run: Callable[[Session], None],
    quick: bool,
    as_json: bool,
    folder: Path,
    given: Sequence[str] = (),
    show: Callable[[Run], None] | None = None,
) -> None:
    """Runs an experiment, and prints its table, or with ``as_json`` its rows.

    Args:
        run: does the measuring.
        given: options of the command line that change what is measured.
        show: prints the run; a row a quantity unless given.
    """
    with extra(), reported():
        from ..bench import summary  # noqa: F401 - what is missing shows now, not after the measuring
        from ..bench.session import Session

        session = Session(experiment, folder, quick, given, None if as_json else err)
        if session.resumed and not as_json:
            err.print(f"[dim]Going on with {escape(str(session.recorder.path))}.[/]", soft_wrap=True)
        try:
            with session.measuring():
                run(session)
        except KeyboardInterrupt:
            _tell_interrupt(session)
            raise
        _show(session, as_json, show)
        if not session.run.measurements:
            raise typer.Exit(1)


def _tell_interrupt(session: Session) -> None:
    kept = len(session.run.measurements)
    where = f"{kept} measurements are kept in {session.recorder.path}" if kept else "nothing was measured yet"
    err.print(f"[yellow]Interrupted: {escape(where)}; the same command goes on from there.[/]", soft_wrap=True)


def _show(session: Session, as_json: bool, show: Callable[[Run], None] | None) -> None:
    from ..bench.summary import rows, table

    if as_json:
        document: dict[str, Any] = {
            "file": str(session.recorder.path),
            "notes": session.run.notes,
            "rows": [row.to_dict() for row in rows(session.run)],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    if show is not None:
        show(session.run)
    else:
        out.print(table(session.run))
    for text in session.run.notes:
        out.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    out.print(f"[dim]{escape(str(session.recorder.path))}[/]", soft_wrap=True)
