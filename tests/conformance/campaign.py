"""The whole run: pairs shared out to worker processes, each with a time limit; resumed where it was interrupted."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections import Counter, deque
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .judge import VERDICTS, Verdict
from .pairs import Pair

LIMIT = 180.0  # seconds a pair may take, compilation of its shaders included
COMMAND = (sys.executable, "-m", "conformance.worker")
_START = 300.0  # seconds a worker may take to import torch and the ops
_FOLDER = Path(__file__).parent.parent


class Worker:
    """A process that judges pairs; started anew after a crash or a hang."""

    def __init__(self, log: Path, command: tuple[str, ...], limit: float) -> None:
        self._log, self._command, self._limit = log, command, limit
        self._process: subprocess.Popen[str] | None = None
        self._answers = -1
        self._rest = b""

    def _start(self) -> None:
        read, write = os.pipe()
        path = os.pathsep.join([str(_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._command, str(write)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                pass_fds=(write,),
                env={**os.environ, "PYTHONPATH": path},
            )
        os.close(write)
        self._answers, self._rest = read, b""
        if self._line(_START) is None:
            raise RuntimeError(f"a worker does not start; {self._log} says why")

    def _line(self, limit: float) -> str | None:
        """The next answer; None where there is none in time, or no process any more."""
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], limit)
            more = os.read(self._answers, 1 << 16) if ready else b""
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def judge(self, pair: Pair) -> Verdict:
        """The verdict, whatever happens to the process."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(pair) + "\n")
            process.stdin.flush()
            answer = self._line(self._limit)
        except BrokenPipeError:
            answer = None
        if answer is not None:
            return Verdict(**json.loads(answer))
        alive = process.poll() is None and not self._ended()
        self.stop()
        if alive:
            return Verdict("hung", f"no answer in {self._limit:.0f} s")
        return Verdict("crashed", f"the process ended with {process.returncode}")

    def _ended(self) -> bool:
        ready, _, _ = select.select([self._answers], [], [], 0)
        return bool(ready)  # readable without a line: the other end is closed

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            os.close(self._answers)
            self._process = None


class Journal:
    """Verdicts as they come, one JSON line each, so that an interrupted run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.known: dict[Pair, Verdict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                name, dtype, *verdict = json.loads(line)
                self.known[name, dtype] = Verdict(*verdict)

    def add(self, pair: Pair, verdict: Verdict) -> None:
        with self._lock:
            self.known[pair] = verdict
            with self.path.open("a") as file:
                file.write(json.dumps([*pair, verdict.verdict, verdict.reason, verdict.sample]) + "\n")


def run(
    pairs: list[Pair], journal: Journal, workers: int, command: tuple[str, ...] = COMMAND, limit: float = LIMIT
) -> dict[Pair, Verdict]:
    """Judges the pairs that the journal does not know; shows a progress bar with the counts.

    Args:
        command: starts a worker; the file descriptor for its answers comes last.
        limit: seconds that a pair may take.
    """
    todo = deque(pair for pair in pairs if pair not in journal.known)
    counts = Counter(journal.known[pair].verdict for pair in pairs if pair in journal.known)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    log = journal.path.with_suffix(".log")
    with Progress(*columns) as progress:
        bar = progress.add_task("conformance", total=len(pairs), completed=len(pairs) - len(todo))

        def work() -> None:
            worker = Worker(log, command, limit)
            try:
                while todo:
                    pair = todo.popleft()
                    verdict = worker.judge(pair)
                    journal.add(pair, verdict)
                    counts[verdict.verdict] += 1
                    shown = "  ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])
                    progress.update(bar, advance=1, description=f"{shown}  [{pair[0]} {pair[1]}]".replace("[", "\\["))
            except IndexError:
                pass  # the other worker took the last one
            finally:
                worker.stop()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {pair: journal.known[pair] for pair in pairs}
