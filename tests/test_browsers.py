"""The measuring page in real browsers, and the server and the starter of browsers against what goes wrong."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from typer.testing import CliRunner
from webbing import linked

from torch_webgpu.bench import browser as bench_browser
from torch_webgpu.bench import browser_plan, browsers, names
from torch_webgpu.bench.browser import Bench, Event, Post, page
from torch_webgpu.bench.browser_plan import Size
from torch_webgpu.bench.browsers import Browser, BrowserError, Running
from torch_webgpu.bench.report.build import write as write_report
from torch_webgpu.bench.results import load
from torch_webgpu.bench.schema import Run, digest, read
from torch_webgpu.bench.stats import fit_line
from torch_webgpu.cli import app
from torch_webgpu.web.certificate import context
from torch_webgpu.web.server import Page, PortError, Receiver, Server

pytestmark = pytest.mark.once

TINY = Size(quick=True, samples=2, warmups=1, counts=(1, 10, 30), waited_counts=(1, 2, 3), many=2)


def installed(name: str) -> Browser:
    """The browser; without it the test is skipped on a user's machine, and fails where browsers are required."""
    found = browsers.find(name)
    if found is None and os.environ.get("TORCH_WEBGPU_TEST_BROWSERS") == "required":
        pytest.fail(browsers.missing(name))
    if found is None:
        pytest.skip(browsers.missing(name))
    return found


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def bench(server: Server, folder: Path, told: list[str] | None = None, patience: float = 60) -> Bench:
    seen = told if told is not None else []
    return Bench(server, TINY, folder, ["torch-webgpu", "bench", "browser"], patience, lambda text, done: seen.append(text))


def ask(
    address: str, method: str = "GET", body: bytes | None = None, tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    """One request: status, text, headers."""
    parts = urlsplit(address)
    assert parts.hostname
    connection: http.client.HTTPConnection
    if tls is not None:
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=10, context=tls)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    connection.request(method, parts.path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.getheaders())


# ---------------------------------------------------------------------------------------------------- real browsers


@pytest.mark.parametrize("name", ("chrome", "firefox"))
def test_a_page_measures_what_the_report_shows(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, told = installed(name), list[str]()
    monkeypatch.setattr(browser_plan, "TICK_COUNTS", (300,))
    shown: list[Event] = []
    take = Post.event

    def listen(self: Post, body: bytes) -> None:
        event = Event.model_validate_json(body)
        if event.kind == "shown":
            shown.append(event)
        take(self, body)

    monkeypatch.setattr(Post, "event", listen)
    small = Size(**{**vars(TINY), "counts": (1, 10, 30) if name == "firefox" else (1, 10, 100)})
    measuring = bench(server, tmp_path, told)
    measuring.size = small
    path, run = measuring.headless(browser, gpu=browsers.has_gpu())
    assert read(path) == run and not server.pages
    known = run.environment.browser
    assert known and known.isolated and known.visible and 0 < known.timer_step <= 100
    assert run.targets[0].implementation in ("chrome", "chromium", "firefox") and run.targets[0].limits
    assert len(run.environment.cpu) > 3 and run.environment.memory  # this machine's own
    _check_measured(run, small)
    _check_shown(run, shown[0])
    assert any("Dispatch: " in text for text in told) and any(text.startswith(f"{name}: ") for text in told)

    page_, _ = write_report(load([path]), tmp_path / "report")
    html = page_.read_text()
    assert "Browsers, beside native libraries" in html and known.version in html
    assert "An idle queue’s wait alone takes" in html


def _check_measured(run: Run, size: Size) -> None:
    methods = {m.method for m in run.measurements if m.experiment == "dispatch"}
    assert methods == {
        names.IDLE_WAIT, names.WAITED, names.READ_BACK, names.UNWAITED, names.SEQUENTIAL, names.PASSES, names.ONE_PASS
    }  # fmt: skip
    sizes = {(len(m.samples), len(m.warmup)) for m in run.measurements if m.unit == "us"}
    assert sizes == {(size.samples, size.warmups)}
    counts = {(m.workload, m.method): m.samples[0] for m in run.measurements if m.metric == names.DISPATCHES}
    for (_, method), dispatches in counts.items():
        last = method.rpartition(", ")[2]
        assert dispatches == (int(last) if last.isdecimal() else 1)
    assert {workload for workload, _ in counts} == {"rms_norm", "mlp", "softmax"}


def _check_shown(run: Run, event: Event) -> None:
    """The lines that the page shows are those that Python fits to its samples."""
    lines = dict(json.loads(event.text))
    for method, line in lines.items():
        own = [m for m in run.measurements if m.method == method and "n" in m.parameters]
        metric = names.HOST if method == names.UNWAITED else names.WALL
        fitted = fit_line({int(m.parameters["n"]): m.samples for m in own if m.metric == metric})
        assert line["slope"] == pytest.approx(fitted.slope, rel=1e-6, abs=1e-6)
        assert line["intercept"] == pytest.approx(fitted.intercept, rel=1e-6, abs=1e-3)
        assert line["slopeInterval"][0] <= line["slopeInterval"][1]
    assert len(lines) == 6


def test_a_wrong_result_is_no_result(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page checks every way to compute something before it is timed."""
    made = bench_browser.plan

    def wrong(size: Size, command: Any) -> dict[str, Any]:
        document = made(size, command)
        for part in ("fusion", "softwareFusion"):
            document[part]["cases"][0]["inputs"]["x"]["seed"] += 1
        return document

    monkeypatch.setattr(bench_browser, "plan", wrong)
    with pytest.raises(BrowserError, match=r"rms_norm \(width 896\), by hand, 6: differs from the CPU's by"):
        bench(server, tmp_path).headless(installed("chrome"), browsers.has_gpu())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    (
        ("chrome", "the browser finds no GPU for WebGPU|no WebGPU switched on"),
        ("firefox", "no WebGPU switched on. .* still behind a switch"),
    ),
)
def test_missing_webgpu_is_told(
    name: str, message: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(browsers._FIREFOX, "dom.webgpu.enabled", "false")
    kept = [flag for flag in browsers._CHROMIUM if "webgpu" not in flag]
    monkeypatch.setattr(browsers, "_CHROMIUM", (*kept, "--disable-gpu", "--disable-software-rasterizer"))
    with pytest.raises(BrowserError, match=f"(?i){message}"):
        bench(server, tmp_path).headless(installed(name), gpu=True)


# ---------------------------------------------------------------------------------------------------- what goes wrong


def fake(folder: Path, script: str) -> Browser:
    """A program in a browser's place."""
    path = folder / "browser"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Browser("chrome", str(path))


def test_a_crash_and_a_silent_browser(server: Server, tmp_path: Path) -> None:
    results = tmp_path / "results"
    with pytest.raises(BrowserError, match=r"chrome ended before it sent a result \(exit code 7\).*no screen"):
        bench(server, results).headless(fake(tmp_path, "echo no screen >&2; exit 7"), True)
    with pytest.raises(BrowserError, match=r"ended before it sent a result \(signal 9\)"):
        bench(server, results).headless(fake(tmp_path, "kill -9 $$"), True)
    with pytest.raises(BrowserError, match=r"said nothing for 1 s \(before that: nothing at all\).*--timeout"):
        bench(server, results, patience=1).headless(fake(tmp_path, "sleep 600"), True)
    with pytest.raises(BrowserError, match="cannot be started"):
        bench(server, results).headless(Browser("chrome", str(tmp_path / "none")), True)
    assert not results.exists()


def test_nothing_is_left_of_a_browser(tmp_path: Path) -> None:
    """Not of one whose children ignore being asked to end, nor its folder."""
    stubborn = "trap '' TERM\n(trap '' TERM; while :; do sleep 1; done) &\nwhile :; do sleep 1; done"
    with Running(fake(tmp_path, stubborn), "about:blank", True) as running:
        time.sleep(0.3)
        family, folder = running._family(), running._folder
        assert len(family) >= 2 and folder.exists()
    assert not folder.exists()
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_ending_the_command_ends_its_browser(tmp_path: Path) -> None:
    """Even when it is told twice."""
    fake(tmp_path, "trap '' TERM\necho $$ >\"$0.pid\"\nwhile :; do sleep 1; done")
    (tmp_path / "browser").rename(tmp_path / "chromium")
    for name in ("google-chrome", "google-chrome-stable", "chrome"):
        (tmp_path / name).symlink_to(tmp_path / "chromium")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", "from torch_webgpu.cli import app; app()", "bench", "browser", "--browser", "chrome"]
    with subprocess.Popen([*command, "--quick", "--out", str(tmp_path / "out")], env=environment) as process:
        seen = tmp_path / "google-chrome.pid"
        deadline = time.monotonic() + 60
        while not (seen.exists() and seen.read_text().strip()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        for _ in range(2):
            process.terminate()
            time.sleep(0.5)
        assert process.wait(30) == 130
    assert not psutil.pid_exists(int(seen.read_text())) and not list(tmp_path.glob("torch-webgpu-*"))


def test_what_a_page_may_not_send(server: Server) -> None:
    made, post = page(TINY, ["x"], False)
    address = server.address(server.add(made))
    run: dict[str, Any] = {"schema_version": 1, "run": "x" * 9, "measurements": []}
    run["digest"] = digest(run)
    for name, body, status, message in (
        ("result", json.dumps(run).encode(), 422, "the result: created: Field required"),
        ("result", b"[" * 100_000, 422, "no JSON"),
        ("result", b"\xff", 422, "decode"),
        ("events", b'{"kind": "shout", "text": ""}', 422, "no event"),
        ("nothing", b"", 404, "Nothing is taken"),
    ):
        found = ask(address + name, "POST", body)
        assert found[0] == status and message in found[1], found
    big = ask(address + "result", "POST", None, Content_Length=str(bench_browser.RESULT_LIMIT + 1))
    assert big[0] == 413 and f"at most {bench_browser.RESULT_LIMIT}" in big[1]
    assert ask(address + "events", "POST", b"{}", Origin="http://evil.example")[0] == 403
    assert ask(address + "events", "POST", b"{}", Host="evil.example")[0] == 403
    assert post.box.empty()
    native = Path(__file__).parent.parent / "benchmarks/results/instrument/dispatch-nvidia-h200.json"
    assert "not measured by the measuring page" in ask(address + "result", "POST", native.read_bytes())[1]


def test_what_the_server_gives_out(server: Server) -> None:
    made, _ = page(TINY, ["x"], False)
    address = server.address(server.add(made))
    status, text, headers = ask(address)
    assert status == 200 and "<title>" in text and headers["Content-Type"].startswith("text/html")
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert json.loads(ask(address + "plan.json")[1])["names"]["methods"]["idle"] == names.IDLE_WAIT
    root = address.removesuffix(f"{made.token}/")
    for other in ("", "index.html", "x" * len(made.token) + "/", "%2e%2e/"):
        assert ask(root + other)[0] == 404
    assert ask(address + "../../server.py")[0] == 404
    assert ask(address.rstrip("/"))[2]["Location"] == f"/{made.token}/"
    for content in made.files.values():  # no request leaves the page's origin
        assert isinstance(content, bytes)
        found = set(re.findall(rb"https?://[\w.]+\w", content))
        assert found <= {b"http://www.w3.org", b"http://127.0.0.1"}  # an XML namespace, and a hint


def test_a_busy_port_is_told(server: Server) -> None:
    with pytest.raises(PortError, match=f"port {server.port}.*--port"):
        Server(port=server.port)
    result = CliRunner().invoke(app, ["bench", "browser", "--port", str(server.port), "--quick"])
    assert result.exit_code == 2 and "another program may have the port" in result.stderr


def test_on_the_network_it_is_https(tmp_path: Path) -> None:
    taken: list[bytes] = []
    with Server("127.0.0.1", 0, context(["127.0.0.1", "192.0.2.7"])) as server:
        made = server.add(Page({"index.html": b"hello"}, {"events": Receiver(10, taken.append)}))
        address = server.address(made)
        assert address.startswith("https://127.0.0.1:")
        trusting = ssl._create_unverified_context()
        assert ask(address, tls=trusting)[:2] == (200, "hello")
        assert ask(address + "events", "POST", b"12345", trusting)[0] == 200 and taken == [b"12345"]
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(address, tls=ssl.create_default_context())


def test_browsers_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(browsers.sys, "platform", "linux")
    result = CliRunner().invoke(app, ["bench", "browser", "--browser", "edge", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "edge is not installed here" in result.stderr
    with pytest.raises(BrowserError, match=r"chrome is not installed.*; firefox is not.*; safari"):
        bench_browser.chosen("all")
    result = CliRunner().invoke(app, ["bench", "browser", "--lan", "--open"])
    assert result.exit_code == 2 and "exclude each other" in result.stderr


def test_the_page_as_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "browser", "--save-page", str(tmp_path / "page"), "--quick"])
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "page" / "plan.json").read_text())
    assert not document["post"] and not document["start"]
    named = {path for page in ("index.html", "llm.html") for path in linked(tmp_path / "page" / page)}
    assert {path.name for path in named} >= {"main.js", "base.css", "style.css"} and all(path.is_file() for path in named)
