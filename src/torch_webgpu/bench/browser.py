"""``torch-webgpu bench browser``: the measuring page, in browsers of this machine or of others."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..web.server import Page, Receiver, Refused, Server, folder_files
from . import browser_llm, browsers
from .browser_llm import Model
from .browser_plan import Size, plan
from .browsers import Browser, BrowserError, Running
from .environment import environment
from .schema import ResultError, Run, parse, write
from .session import result_path

STATIC = Path(__file__).parent.parent / "web" / "static" / "measure"
RESULT_LIMIT, EVENT_LIMIT = 8 << 20, 64 << 10
MOST_RESULTS = 64  # of one page: nobody fills the disk
_EXPERIMENTS = frozenset(("dispatch", "fusion"))


class Event(BaseModel):
    """What a page tells while it measures."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["started", "progress", "shown", "failed"]
    text: str = Field(max_length=50_000)
    done: float = Field(default=0, ge=0, le=1, allow_inf_nan=False)
    total: Literal[1] = 1


@dataclass
class Post:
    """What pages have sent, in order: events and checked runs.

    Attributes:
        experiments: that a page measures.
    """

    experiments: frozenset[str] = _EXPERIMENTS
    box: queue.Queue[Event | Run] = field(default_factory=queue.Queue)
    results: int = 0

    def event(self, body: bytes) -> None:
        """Takes an event."""
        try:
            self.box.put(Event.model_validate_json(body))
        except ValidationError as e:
            raise Refused(422, f"this is no event: {e.errors()[0]['msg']}") from None

    def result(self, body: bytes) -> None:
        """Takes a run that breaks no rule of the schema and was measured in a browser."""
        try:
            run = parse(body.decode(), "the result")
        except (ResultError, UnicodeDecodeError) as e:
            raise Refused(422, str(e)) from None
        others = {m.experiment for m in run.measurements} - self.experiments
        if run.environment.browser is None or others or any(t.kind != "browser" for t in run.targets):
            raise Refused(422, "the result: it was not measured by the measuring page")
        if self.results >= MOST_RESULTS:
            raise Refused(429, f"this page has sent {MOST_RESULTS} results already; start torch-webgpu bench browser again")
        self.results += 1
        self.box.put(run)


def page(size: Size | Model, command: Sequence[str], start: bool) -> tuple[Page, Post]:
    """The measuring page, or that for a language model, and where what it sends arrives.

    Args:
        start: whether it measures as soon as it is open.
    """
    files: dict[str, bytes | Path] = {**folder_files(STATIC)}
    if isinstance(size, Model):
        post, document = Post(frozenset(("llm",))), browser_llm.plan(size, command)
        files = browser_llm.files(size, folder_files(STATIC))
    else:
        post, document = Post(), plan(size, command)
    files["plan.json"] = json.dumps({**document, "start": start, "post": True}).encode()
    receivers = {"events": Receiver(EVENT_LIMIT, post.event), "result": Receiver(RESULT_LIMIT, post.result)}
    return Page(files, receivers), post


def save_page(folder: Path, size: Size) -> None:
    """Writes the page as files for any web server with https; it offers its result as a download."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {**plan(size, ["measuring page"]), "start": False, "post": False}
    for name, content in {**folder_files(STATIC), "plan.json": json.dumps(document).encode()}.items():
        (folder / name).write_bytes(content)


Progress = Callable[[str, float], None]


@dataclass
class Bench:
    """Measures in browsers and keeps what they send.

    Attributes:
        folder: of the result files.
        command: for the record.
        patience: seconds without a sign of life after which a browser is given up.
        progress: told what is going on, and how far it is.
    """

    server: Server
    size: Size | Model
    folder: Path
    command: list[str]
    patience: float
    progress: Progress

    def headless(self, browser: Browser, gpu: bool) -> tuple[Path, Run]:
        """One browser of this machine, from its start to its end.

        Raises:
            BrowserError: where it crashes, says nothing for too long, or has no WebGPU.
        """
        made, post = page(self.size, self.command, True)
        self.server.add(made)
        self.progress(f"{browser.name}: starting", 0)
        before = environment()
        try:
            with Running(browser, self.server.address(made), gpu) as running:
                run = self._await(post, running)
        finally:
            del self.server.pages[made.token]
        return self.keep(run, before, [f"headless, {running.settings}"] if running.settings else [])

    def _await(self, post: Post, running: Running) -> Run:
        name, last, silent_since = running.browser.name, "nothing at all", time.monotonic()
        while True:
            try:
                sent = post.box.get(timeout=0.2)
            except queue.Empty:
                running.check()
                if time.monotonic() - silent_since > self.patience:
                    raise BrowserError(
                        f"{name} said nothing for {self.patience:g} s (before that: {last}); give it more with "
                        f"--timeout, or open the page by hand with --open{running.last_words()}"
                    ) from None
                continue
            if isinstance(sent, Run):
                return sent
            if sent.kind == "failed":
                hint = f" It ran {running.settings}." if running.settings else ""
                raise BrowserError(f"{name}: {sent.text}{hint}")
            silent_since, last = time.monotonic(), sent.text[:200]
            if sent.kind != "shown":
                self.progress(f"{name}: {sent.text}", sent.done)

    def by_hand(self, post: Post, local: bool) -> Iterator[tuple[Path, Run]]:
        """Results of a page that people open, as they come, without an end."""
        before = environment() if local else None
        while True:
            try:
                sent = post.box.get(timeout=0.5)
            except queue.Empty:
                continue
            if isinstance(sent, Run):
                yield self.keep(sent, before, [])
            elif sent.kind == "failed":
                self.progress(f"a page says: {sent.text}", 0)
            elif sent.kind != "shown":
                self.progress(sent.text, sent.done)

    def keep(self, run: Run, here: Any, notes: Sequence[str]) -> tuple[Path, Run]:
        """Stores a run; one of this machine gets the machine's own environment, which no page can know."""
        known = run.environment
        if here is not None:
            versions = {**here.versions, **known.versions}
            known = here.model_copy(update={"browser": known.browser, "versions": versions})
        run = run.model_copy(update={"environment": known, "command": self.command, "notes": [*run.notes, *notes]})
        browser = known.browser.name if known.browser else "unknown"
        name = "".join(c if c.isalnum() else "-" for c in browser.lower())
        path = result_path(self.folder, f"browser-{name}", [])
        write(run, path)
        return path, run


def chosen(name: str) -> list[Browser]:
    """The browsers of this machine that were asked for.

    Raises:
        BrowserError: where there is none.
    """
    wanted = browsers.NAMES if name == "all" else (name,)
    found = [b for n in wanted if (b := browsers.find(n)) is not None]
    if not found:
        raise BrowserError("; ".join(browsers.missing(n) for n in wanted))
    return found
