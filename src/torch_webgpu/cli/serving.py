"""What commands share that serve pages."""

from __future__ import annotations

import socket
import webbrowser
from typing import TYPE_CHECKING

from .console import err, fail

if TYPE_CHECKING:
    from ..web.server import Page, Server


def server_for(lan: bool, port: int) -> tuple[Server, list[str]]:
    """A server, and the hosts that it can be reached at.

    Raises:
        typer.Exit: where there is no network, or the port is taken.
    """
    from ..web.server import LOOPBACK, PortError, Server

    hosts = _lan_hosts() if lan else [LOOPBACK]
    if not hosts:
        raise fail("--lan: this machine has no network address but its own; join a network first.")
    tls = None
    if lan:
        from ..web.certificate import context

        tls = context(hosts)
    try:
        return Server("0.0.0.0" if lan else LOOPBACK, port, tls), hosts
    except PortError as e:
        raise fail(str(e)) from None


def _lan_hosts() -> list[str]:
    """IPv4 addresses of this machine that others on its network can reach, the likeliest first."""
    import psutil

    found = [
        a.address
        for addresses in psutil.net_if_addrs().values()
        for a in addresses
        if a.family == socket.AF_INET and not a.address.startswith(("127.", "169.254."))
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
        try:
            probe.connect(("192.0.2.1", 9))
            first = probe.getsockname()[0]
        except OSError:
            first = ""
    return sorted(dict.fromkeys(found), key=lambda host: host != first)


def announce(server: Server, page: Page, hosts: list[str], lan: bool) -> None:
    """Prints where a page is."""
    for host in hosts:
        err.print(f"[bold]{server.address(page, host)}[/]", soft_wrap=True)
    if lan:
        err.print(
            "[dim]The address is good until Ctrl-C. Browsers give WebGPU to https pages alone, and do not know this "
            "machine’s certificate: choose to go on where they warn.[/]",
            soft_wrap=True,
        )


def open_browser(address: str) -> None:
    """Opens the user's own browser, or says that there is none."""
    if not webbrowser.open(address):
        err.print("[yellow]No browser could be opened here: open the address yourself.[/]")
