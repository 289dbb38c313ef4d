"""A small local server: pages under secret addresses, and what they may send back.

Every page lies under ``/<token>/``. The token is made anew for each start, so that neither another page of the browser nor
somebody else on the network can open it or post to it. What may be asked for is listed by name: there is no path to escape
from. The headers make pages cross-origin isolated (fine timers) and keep every request at the page's own origin.
"""

from __future__ import annotations

import hmac
import mimetypes
import os
import secrets
import shutil
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
_MOST_CONNECTIONS = 64
_SECONDS = 30  # that a connection may say nothing
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".html": "text/html",
    ".css": "text/css",
}


class PortError(OSError):
    """The address cannot be served at; the message says why and what to do."""


class Refused(Exception):  # noqa: N818 (an answer, not a fault)
    """What a page has sent is not taken; it is told the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Receiver:
    """Takes what a page posts to one name.

    Attributes:
        limit: bytes; more is refused unread.
        take: raises ``Refused`` for what is not to be taken.
    """

    limit: int
    take: Callable[[bytes], None]


@dataclass(frozen=True)
class Page:
    """What lies under one token: files by their path, ``index.html`` for the folder itself; and what may be posted.

    A file is its bytes, or where it lies on disk: it is read each time then.
    """

    files: Mapping[str, bytes | Path]
    receivers: Mapping[str, Receiver] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))


def folder_files(folder: Path) -> dict[str, bytes]:
    """All files of a folder, by name."""
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


class Server:
    """Serves pages in threads of its own while it is entered."""

    def __init__(self, host: str = LOOPBACK, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """
        Args:
            host: address to listen at.
            port: 0 takes a free one.
            tls: for https.

        Raises:
            PortError: where the address is taken or not allowed.
        """
        self.pages: dict[str, Page] = {}
        self._tls = tls
        try:
            self._http = _Http((host, port), self)
        except (OSError, OverflowError) as e:
            raise PortError(
                f"cannot serve at {host}, port {port}: {getattr(e, 'strerror', None) or e}; another program may have the "
                "port: choose one with --port, or leave it out for a free one"
            ) from None
        self.port: int = self._http.server_address[1]
        self.local = host in (LOOPBACK, "localhost")
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)

    def add(self, page: Page) -> Page:
        """Serves a page from now on."""
        self.pages[page.token] = page
        return page

    def address(self, page: Page, host: str = LOOPBACK) -> str:
        """Where to open a page."""
        return f"{self.scheme}://{host}:{self.port}/{page.token}/"

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return "https" if self._tls else "http"

    def page(self, token: str) -> Page | None:
        """The page of a token, found without telling by time how much of it is right."""
        return next((p for t, p in self.pages.items() if hmac.compare_digest(t.encode(), token.encode())), None)

    def knows(self, host: str) -> bool:
        """Whether a request for this host is meant for this server: on loopback, no other name can lead here."""
        return not self.local or host in (f"{LOOPBACK}:{self.port}", f"localhost:{self.port}")


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two programs share a port

    def __init__(self, address: tuple[str, int], owner: Server) -> None:
        self.owner = owner
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_SECONDS)
            tls = self.owner._tls
            if tls is not None:  # here, not in the listening thread: a client that says nothing holds up itself alone
                request = tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:
            self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the client's affair."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS

    def version_string(self) -> str:
        return "torch-webgpu"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", kind: str = "text/plain; charset=utf-8", **more: str) -> None:
        self._begin(status, len(body), kind, **more)
        self.wfile.write(body)

    def _begin(self, status: int, length: int, kind: str, **more: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(length), **more}.items():
            self.send_header(name, value)
        if status >= 400:  # what was not read would be taken for the next request
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()

    def _page(self) -> tuple[Page, str] | None:
        """The page asked for and the rest of the path; where there is none, that is answered."""
        if not self.server.owner.knows(self.headers.get("Host", "")):
            self._answer(403, b"This server answers to its own address alone.")
            return None
        _, token, *rest = self.path.partition("?")[0].split("/", 2)
        page = self.server.owner.page(token)
        if page is None:
            self._answer(404, b"There is no page here. Open the whole address that torch-webgpu has printed.")
            return None
        if not rest:
            self._answer(308, Location=f"/{token}/")
            return None
        return page, rest[0]

    def do_GET(self) -> None:
        found = self._page()
        if found is None:
            return
        page, name = found
        name = name or "index.html"
        body = page.files.get(name)
        if body is None:
            self._answer(404, b"There is no such file.")
            return
        ending = name[name.rfind(".") :]
        kind = _TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind = f"{kind}; charset=utf-8" if ending in _TYPES else kind
        if isinstance(body, bytes):
            self._answer(200, body, kind)
        else:
            self._answer_from_disk(body, kind)

    def _answer_from_disk(self, path: Path, kind: str) -> None:
        try:
            file = path.open("rb")
        except OSError:
            self._answer(404, b"There is no such file any more.")
            return
        with file:
            self._begin(200, os.fstat(file.fileno()).st_size, kind)
            shutil.copyfileobj(file, self.wfile, 1 << 20)

    def do_POST(self) -> None:
        found = self._page()
        if found is None:
            return
        page, name = found
        receiver = page.receivers.get(name)
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"{self.server.owner.scheme}://{self.headers.get('Host')}":
            self._answer(403, b"Only this server's own pages may send something.")
        elif receiver is None:
            self._answer(404, b"Nothing is taken at this address.")
        elif not (length := self.headers.get("Content-Length", "")).isascii() or not length.isdecimal():
            self._answer(411, b"The request does not say how long it is.")
        elif int(length) > receiver.limit:
            self._answer(413, f"{int(length)} bytes are too many: at most {receiver.limit} are taken.".encode())
        else:
            self._receive(receiver, int(length))

    def _receive(self, receiver: Receiver, length: int) -> None:
        body = self.rfile.read(length)
        if len(body) < length:
            self._answer(400, b"The request ended early.")
            return
        try:
            receiver.take(body)
        except Refused as e:
            self._answer(e.status, str(e).encode())
        else:
            self._answer(200)
