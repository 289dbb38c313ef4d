"""Experiments in processes of their own: one process can load one WebGPU library, and a driver that crashes ends only that.

``python -m torch_webgpu.bench.worker module:function`` is such a process. It reads a request from stdin and writes a JSON
document a line; what libraries print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from .clocks import clocks
from .recorder import same_target
from .schema import Measurement, Quantity, Target

if TYPE_CHECKING:
    from .session import Session


class Remote:
    """A ``Sink`` whose measurements are kept by the parent."""

    def __init__(self, output: IO[str], quick: bool, targets: list[Target], measured: list[Quantity]) -> None:
        self.quick, self._output, self._targets = quick, output, targets
        self._keys = {quantity.key for quantity in measured}
        self._used: set[int] = set()

    def _send(self, **message: Any) -> None:
        self._output.write(json.dumps(message) + "\n")
        self._output.flush()

    def target(self, target: Target) -> int:
        """See ``Sink``."""
        known = (i for i, other in enumerate(self._targets) if same_target(other, target))
        number = next(known, len(self._targets))
        if number == len(self._targets):
            self._targets.append(target)
            self._send(target=target.model_dump(mode="json"))
        self._used.add(number)
        return number

    def finish(self) -> None:
        """Tells what the clocks of the targets that were used are now, and that all went through."""
        for number in sorted(self._used):
            target = self._targets[number]
            self._send(clocks=[number, clocks(target.adapter, target.adapter_kind)])
        self._send(finished=True)

    def has(self, quantity: Quantity) -> bool:
        """See ``Sink``."""
        return quantity.key in self._keys

    def add(self, measurement: Measurement) -> None:
        """See ``Sink``."""
        self._keys.add(measurement.key)
        self._send(measurement=measurement.model_dump(mode="json"))

    def note(self, text: str) -> None:
        """See ``Sink``."""
        self._send(note=text)

    def progress(self, text: str, done: float = 0, total: float = 1) -> None:
        """See ``Sink``."""
        self._send(progress=[text, done, total])


def work(session: Session, function: str, request: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Runs ``function(request, sink)`` in a process of its own and keeps what it measures.

    Args:
        function: ``module:name``, the module relative to ``torch_webgpu.bench``.
        request: what JSON can say.
        environment: variables that differ from this process's.

    Returns:
        Whether it went through; why it did not is a note of the run.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.worker", function],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stdin and process.stdout and process.stderr
    complaints: list[str] = []
    listener = threading.Thread(target=lambda pipe: complaints.extend(pipe), args=(process.stderr,), daemon=True)
    listener.start()
    finished = False
    try:
        quantities = [Quantity(**{k: getattr(m, k) for k in Quantity.model_fields}) for m in session.run.measurements]
        opening = {
            "request": dict(request),
            "quick": session.quick,
            "targets": [t.model_dump(mode="json") for t in session.run.targets],
            "measured": [q.model_dump(mode="json") for q in quantities],
        }
        try:
            process.stdin.write(json.dumps(opening))
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once; its exit code says so
        for line in process.stdout:
            finished |= _take(session, json.loads(line))
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        listener.join(5)
    if not finished:
        what = request.get("title", function)
        last = ([line.strip() for line in complaints if line.strip()] or ["it printed nothing"])[-1]
        session.note(f"{what}: the process that measured it ended early (exit code {process.returncode}): {last}")
    return finished


def _take(session: Session, message: dict[str, Any]) -> bool:
    if "target" in message:
        session.target(Target.model_validate_json(json.dumps(message["target"])))
    elif "clocks" in message:
        session.recorder.clocks_after(*message["clocks"])
    elif "measurement" in message:
        session.add(Measurement(**message["measurement"]))
    elif "note" in message:
        session.note(message["note"])
    elif "progress" in message:
        session.progress(*message["progress"])
    return "finished" in message


def main() -> None:
    """See the module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    opening = json.load(sys.stdin)
    targets = [Target.model_validate_json(json.dumps(t)) for t in opening["targets"]]
    sink = Remote(output, opening["quick"], targets, [Quantity(**q) for q in opening["measured"]])
    module, _, name = sys.argv[1].partition(":")
    title = opening["request"].get("title", name)
    try:
        getattr(importlib.import_module(f".{module}", __package__), name)(opening["request"], sink)
    except (RuntimeError, ValueError, ImportError) as e:  # the library's, the device's, or a missing package
        sink.note(f"{title}: {type(e).__name__}: {e}")
    sink.finish()
    os._exit(0)  # drivers that crash while they unload have nothing left to say


if __name__ == "__main__":
    main()
