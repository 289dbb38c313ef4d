"""``torch-webgpu serve``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .bench_run import extra
from .console import err, fail, reported


def serve(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Bundles, or folders of bundles.")],
    lan: Annotated[bool, typer.Option("--lan", help="Serve on the network, for phones and other machines.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page.", show_default="a free one")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
) -> None:
    """Serve exported models with their pages: a chat, image classification, or what the model takes."""
    from .serving import announce, open_browser, server_for

    with extra(), reported():
        from ..errors import ExportError
        from ..web.server import Page
        from ..web.serving import files

        try:
            bundles, served = files(folders)
        except ExportError as e:
            raise fail(str(e)) from None
        server, hosts = server_for(lan, port)
        with server:
            page = server.add(Page(served))
            err.print(escape(", ".join(made.name for made in bundles)), soft_wrap=True)
            announce(server, page, hosts, lan)
            err.print("[dim]Ctrl-C ends.[/]")
            if open_page:
                open_browser(server.address(page, hosts[0]))
            threading.Event().wait()
