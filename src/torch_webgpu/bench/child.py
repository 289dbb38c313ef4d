"""Measuring in processes of their own: what a child tells, a line each, and how its parent records it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .recorder import Recorder
from .schema import Absence, Measurement, Target

MARK = "\x1e"  # before each line that the parent reads; libraries print what they like


class UnsuitableError(RuntimeError):
    """A job cannot be measured here, or computes something wrong; the message says why."""


def tell(kind: str, value: Any) -> None:
    """A line for the parent."""
    print(f"{MARK}{kind} {json.dumps(value)}", flush=True)


def read_lines(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """(kind, value) of what a child told; other output is passed over."""
    for line in lines:
        if MARK in line:
            kind, _, value = line.partition(MARK)[2].partition(" ")
            yield kind, json.loads(value)


def run_child(
    module: str,
    job: str,
    environment: Mapping[str, str],
    recorder: Recorder,
    absence: Callable[[str], Absence],
    limit: float | None = None,
) -> str | None:
    """Runs ``python -m module`` with a job on its standard input, and records what it finds.

    Args:
        absence: that the job was not measured, for a reason; of a child that ends badly.
        limit: seconds after which it is ended.

    Returns:
        Why it was not measured, or None.
    """
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=dict(environment),
        )
        deadline = _Deadline(child, limit)
        try:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(job)
            child.stdin.close()
            reason = _record(read_lines(child.stdout), recorder)
            code = child.wait()
        finally:
            deadline.cancel()
            if child.poll() is None:
                child.kill()
                child.wait()
        if reason is None and code:
            errors.seek(0)
            lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
            ended = f"was ended after {limit:g} s" if deadline.passed else f"ended with code {code}"
            said = "" if deadline.passed else f": {lines[-1][:400] if lines else 'it said nothing'}"
            reason = f"its process {ended}{said}"
            recorder.absent(absence(reason))
    return reason


def _record(told: Iterable[tuple[str, Any]], recorder: Recorder) -> str | None:
    target, reason = 0, None
    for kind, value in told:
        if kind == "target":
            target = recorder.target(Target.model_validate(value))
        elif kind == "measurement":
            found = Measurement.model_validate({**value, "target": target})
            if not recorder.has(found):
                recorder.add(found)
        elif kind == "absent":
            absent = Absence.model_validate(value)
            recorder.absent(absent)
            reason = absent.reason
    return reason


class _Deadline:
    """Ends a process after a time."""

    def __init__(self, child: subprocess.Popen[str], seconds: float | None) -> None:
        self.passed, self._child = False, child
        self._timer = threading.Timer(seconds, self._end) if seconds is not None else None
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self.passed = True
        self._child.kill()

    def cancel(self) -> None:
        """No longer."""
        if self._timer is not None:
            self._timer.cancel()
