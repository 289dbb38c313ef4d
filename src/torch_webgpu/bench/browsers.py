"""Browsers of this machine: found, started headless with a profile of their own, and ended with all they left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

NAMES = ("chrome", "firefox", "edge", "safari")

_COMMANDS = {
    "chrome": ("google-chrome", "google-chrome-stable", "chrome", "chromium", "chromium-browser"),
    "firefox": ("firefox", "firefox-esr"),
    "edge": ("microsoft-edge", "microsoft-edge-stable", "msedge"),
    "safari": (),
}
_MAC = {
    "chrome": ("Google Chrome.app/Contents/MacOS/Google Chrome", "Chromium.app/Contents/MacOS/Chromium"),
    "firefox": ("Firefox.app/Contents/MacOS/firefox",),
    "edge": ("Microsoft Edge.app/Contents/MacOS/Microsoft Edge",),
    "safari": ("Safari.app/Contents/MacOS/Safari",),
}
_WINDOWS = {
    "chrome": (r"Google\Chrome\Application\chrome.exe", r"Chromium\Application\chrome.exe"),
    "firefox": (r"Mozilla Firefox\firefox.exe",),
    "edge": (r"Microsoft\Edge\Application\msedge.exe",),
    "safari": (),
}
_INSTALL = {
    "chrome": "on Debian: apt-get install chromium",
    "firefox": "on Debian: apt-get install firefox-esr",
    "edge": "see microsoft.com/edge",
    "safari": "it comes with macOS alone",
}
_CHROMIUM = (
    "--headless=new", "--no-first-run", "--no-default-browser-check", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability", "--disable-extensions",
    "--disable-sync", "--disable-breakpad", "--disable-crash-reporter", "--metrics-recording-only", "--no-pings",
    "--password-store=basic", "--use-mock-keychain", "--mute-audio", "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows",
    "--enable-unsafe-webgpu", "--enable-webgpu-developer-features",
)  # fmt: skip
#: The last one of Chromium's makes it tell the adapter's name and driver; the clock stays as it is.
_FIREFOX = {
    "dom.webgpu.enabled": "true",
    "gfx.webgpu.ignore-blocklist": "true",
    "app.update.enabled": "false",
    "app.normandy.enabled": "false",
    "browser.aboutwelcome.enabled": "false",
    "browser.shell.checkDefaultBrowser": "false",
    "datareporting.policy.dataSubmissionEnabled": "false",
    "datareporting.healthreport.uploadEnabled": "false",
    "toolkit.telemetry.enabled": "false",
    "extensions.update.enabled": "false",
    "network.captive-portal-service.enabled": "false",
    "network.connectivity-service.enabled": "false",
    "services.settings.server": '"data:,"',
}


class BrowserError(RuntimeError):
    """A browser is missing, ended early, or said nothing; the message says what to do."""


@dataclass(frozen=True)
class Browser:
    """One that is installed here; ``name`` is of ``NAMES``."""

    name: str
    path: str


def find(name: str) -> Browser | None:
    """The browser of that name; None where it is not installed."""
    for command in _COMMANDS[name]:
        if on_path := shutil.which(command):
            return Browser(name, on_path)
    folders: list[Path] = []
    rest = _MAC[name] if sys.platform == "darwin" else _WINDOWS[name]
    if sys.platform == "darwin":
        folders = [Path("/Applications"), Path.home() / "Applications"]
    elif sys.platform == "win32":
        folders = [Path(os.environ[v]) for v in ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA") if v in os.environ]
    found = next((path for folder in folders for part in rest if (path := folder / part).exists()), None)
    return Browser(name, str(found)) if found else None


def missing(name: str) -> str:
    """What to say where a browser is not installed."""
    return f"{name} is not installed here ({_INSTALL[name]})"


def has_gpu() -> bool:
    """Whether a GPU's driver is open to programs: on Linux by its device files; elsewhere one is taken for granted."""
    if not sys.platform.startswith("linux"):
        return True
    return any(Path("/dev/dri").glob("renderD*")) or Path("/dev/nvidia0").exists()


def flags(browser: Browser, profile: Path, gpu: bool) -> list[str]:
    """What a browser is started with before the address, from a profile folder that is new."""
    if browser.name == "firefox":
        return ["--headless", "--no-remote", "--profile", str(profile)]
    found = [*_CHROMIUM, f"--user-data-dir={profile}"]
    if sys.platform.startswith("linux"):
        found.append("--enable-features=Vulkan")
        if os.geteuid() == 0:  # Chromium's sandbox refuses root, which is as good as always a container
            found += ["--no-sandbox", "--disable-dev-shm-usage"]
    if not gpu:
        found.append("--use-webgpu-adapter=swiftshader")
    return found


class Running:
    """A browser on a page, as a context: at its end no process and no file of it is left."""

    def __init__(self, browser: Browser, address: str, gpu: bool) -> None:
        """Starts it.

        Args:
            gpu: whether there is one; without, Chromium is told to use its rasteriser.

        Raises:
            BrowserError: where it cannot be started.
        """
        self.browser = browser
        self._folder = Path(tempfile.mkdtemp(prefix="torch-webgpu-browser-"))
        profile = self._folder / "profile"
        profile.mkdir()
        if browser.name == "firefox":
            lines = [f'user_pref("{name}", {value});\n' for name, value in _FIREFOX.items()]
            (profile / "user.js").write_text("".join(lines))
        self.flags = [] if browser.name == "safari" else flags(browser, profile, gpu)
        command = [browser.path, *self.flags, address]
        if browser.name == "safari":  # it has neither a headless mode nor profiles: a window of the user's own opens
            command = ["open", "-g", "-a", "Safari", address]
        self._complaints: deque[str] = deque(maxlen=40)
        try:
            self._process = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as e:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise BrowserError(f"{browser.name} ({browser.path}) cannot be started: {e}") from None
        assert self._process.stderr
        threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True).start()

    @property
    def settings(self) -> str:
        """Those of its flags and preferences that WebGPU depends on; empty where there are none."""
        if self.browser.name == "firefox":
            return "with " + ", ".join(f"{k} = {v}" for k, v in _FIREFOX.items() if "webgpu" in k)
        told = [f for f in self.flags if re.search("-webgpu|Vulkan|sandbox", f) and str(self._folder) not in f]
        return f"with {' '.join(told)}" if told else ""

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, "MOZ_CRASHREPORTER_DISABLE": "1"}
        if sys.platform.startswith("linux"):  # what it keeps outside its profile goes with the folder too
            environment["HOME"] = str(self._folder)
            for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
                environment.pop(name, None)
        return environment

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                if text := line.decode(errors="replace").strip():
                    self._complaints.append(text)

    def check(self) -> None:
        """Raises BrowserError where the browser has ended."""
        code = self._process.poll()
        if code is None or (self.browser.name == "safari" and code == 0):
            return
        time.sleep(0.1)  # for what it said last
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise BrowserError(f"{self.browser.name} ended before it sent a result ({how}){self.last_words()}")

    def last_words(self) -> str:
        """What it said last on stderr, as an ending of a message."""
        said = list(self._complaints)[-2:]
        return f"; it said last: {' / '.join(said)[:500]}" if said else ""

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends every process that was started, politely first, and removes the folder; a second Ctrl-C changes nothing."""
        with _undisturbed():
            self._end()

    def _end(self) -> None:
        alive = self._family()
        for process in alive:
            _quietly(process.terminate)
        _, alive = psutil.wait_procs(alive, timeout=3)
        for process in {*alive, *self._family()}:
            _quietly(process.kill)
        psutil.wait_procs(self._family(), timeout=3)
        if self._process.poll() is None and self.browser.name != "safari":
            self._process.kill()
        self._process.wait(5)
        for _attempt in range(20):  # a process that is just ending may still write
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists():
                return
            time.sleep(0.1)

    def _family(self) -> list[psutil.Process]:
        """Its processes: descendants, those of its session, and those that name its folder."""
        mine = self._process.pid
        found = set()
        try:
            root = psutil.Process(mine)
            found |= {root, *root.children(recursive=True)}
        except psutil.Error:
            pass
        for process in psutil.process_iter():
            try:
                in_session = os.name == "posix" and os.getsid(process.pid) == mine
                if in_session or str(self._folder) in " ".join(process.cmdline()):
                    found.add(process)
            except (psutil.Error, OSError):
                continue
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Inside, the signals that end a program wait; in other threads than the main one they do not arrive anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _quietly(end: Callable[[], None]) -> None:
    with suppress(psutil.Error):  # it has ended by itself
        end()
