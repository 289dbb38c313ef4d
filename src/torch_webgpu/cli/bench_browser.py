"""``torch-webgpu bench browser``."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .bench_run import RESULTS, AsJson, Out, Quick, extra, options
from .console import err, fail, load_torch, out, reported
from .serving import announce, open_browser, server_for

if TYPE_CHECKING:
    from ..bench.browser import Bench
    from ..bench.schema import Run


class Choice(str, Enum):
    """Browsers that can be started here."""

    chrome = "chrome"
    firefox = "firefox"
    edge = "edge"
    safari = "safari"
    all = "all"


def browser(
    browser: Annotated[Choice, typer.Option(help="Which of this machine's browsers; chrome is Chromium too.")] = Choice.all,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in your own browser instead.")] = False,
    lan: Annotated[bool, typer.Option("--lan", help="Serve on the network instead, for phones and other machines.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page.", show_default="a free one")] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds of silence before a browser is given up.")] = 180,
    software: Annotated[bool, typer.Option("--software", help="Chrome's own rasteriser even where there is a GPU.")] = False,
    llm: Annotated[Path | None, typer.Option(metavar="BUNDLE", help="Measure an exported language model instead.")] = None,
    save: Annotated[Path | None, typer.Option("--save-page", metavar="DIR", help="Only write the page as files.")] = None,
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """The same measurements in a page: what a dispatch costs in Chrome, Edge, Firefox and Safari."""
    if llm is not None and save is not None:
        raise fail("--llm and --save-page exclude each other: a bundle's own folder is a page already.")
    if lan and open_page:
        raise fail("--lan and --open exclude each other: open the address that --lan prints.")
    with extra(), reported(), _ended_politely():
        load_torch()
        from ..bench.browser import Bench, save_page
        from ..bench.browser_llm import Model
        from ..bench.browser_plan import Size
        from ..errors import ExportError

        try:
            size = Size.of(quick) if llm is None else Model.of(llm, quick)
        except ExportError as e:
            raise fail(str(e)) from None
        if save is not None:
            save_page(save, Size.of(quick))
            out.print(f"[bold]{escape(str(save))}[/]: for any web server with https.", soft_wrap=True)
            return
        given = options(browser=None if lan or open_page else browser.value, llm=llm)
        flags = [f"--{n}" for n, on in {"quick": quick, "open": open_page, "lan": lan, "software": software}.items() if on]
        command = ["torch-webgpu", "bench", "browser", *given, *flags]
        server, hosts = server_for(lan, port)
        with server, _bar(as_json) as progress:
            bench = Bench(server, size, folder, command, timeout, progress)
            if lan or open_page:
                _by_hand(bench, hosts, lan, as_json)
            else:
                _headless(bench, browser.value, software, as_json)


@contextmanager
def _ended_politely() -> Iterator[None]:
    """Inside, SIGTERM ends the program as Ctrl-C does: browsers are ended with it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextmanager
def _bar(as_json: bool) -> Iterator[Any]:
    """Shows progress on a terminal; what is told is the text and the share that is done."""
    hidden = as_json or not err.is_terminal
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1)

        def progress(text: str, done: float) -> None:
            bar.update(task, description=escape(text), completed=done)

        yield progress


def _headless(bench: Bench, name: str, software: bool, as_json: bool) -> None:
    from ..bench.browser import chosen
    from ..bench.browsers import BrowserError, has_gpu

    try:
        found = chosen(name)
    except BrowserError as e:
        raise fail(str(e)) from None
    done, failed = [], []
    for one in found:
        try:
            done.append(bench.headless(one, has_gpu() and not software))
        except BrowserError as e:
            failed.append(str(e))
            err.print(f"[bold red]error:[/] {escape(str(e))}", soft_wrap=True)
            continue
        if not as_json:
            _show(*done[-1])
    if as_json:
        files = [_document(path, run) for path, run in done]
        typer.echo(json.dumps({"files": files, "failed": failed}, indent=2))
    if failed:
        raise typer.Exit(1)


def _document(path: Path, run: Run) -> dict[str, Any]:
    from ..bench.summary import rows

    return {"file": str(path), "notes": run.notes, "rows": [row.to_dict() for row in rows(run)]}


def _by_hand(bench: Bench, hosts: list[str], lan: bool, as_json: bool) -> None:
    from ..bench.browser import page

    made, post = page(bench.size, bench.command, False)
    bench.server.add(made)
    announce(bench.server, made, hosts, lan)
    if not lan:
        open_browser(bench.server.address(made))
    err.print("[dim]Press the page’s button; results are stored as they come. Ctrl-C ends.[/]")
    for path, run in bench.by_hand(post, local=not lan):
        if as_json:
            typer.echo(json.dumps(_document(path, run)))
        else:
            _show(path, run)


def _show(path: Path, run: Run) -> None:
    from .bench_models import models_table

    if all(m.experiment == "llm" for m in run.measurements):
        models_table(run)
    else:
        _show_dispatches(run)
    for text in run.notes:
        out.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    out.print(f"[dim]{escape(str(path))}[/]", soft_wrap=True)


def _show_dispatches(run: Run) -> None:
    from ..bench.summary import table
    from .bench_models import fusion_table

    dispatches = [m for m in run.measurements if m.experiment == "dispatch"]
    out.print(table(run.model_copy(update={"measurements": dispatches})))
    fusion_table(run)
