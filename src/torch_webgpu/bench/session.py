"""What the experiments share: where measurements go, how much is taken, progress, and what is left after an interrupt.

An experiment is a function that takes a ``Sink``: the ``Session`` itself, or in a process of its own (a process can load one
WebGPU library only) a ``worker.Remote``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .clocks import clocks
from .recorder import Recorder
from .schema import Experiment, Measurement, Quantity, ResultError, Run, Target, read

SAMPLES, WARMUPS = 30, 3
QUICK_SAMPLES, QUICK_WARMUPS = 7, 1


class Sink(Protocol):
    """Takes an experiment's measurements.

    Attributes:
        quick: whether few samples of few cases are wanted.
    """

    quick: bool

    def target(self, target: Target) -> int:
        """The target's number in this run."""

    def has(self, quantity: Quantity) -> bool:
        """Whether it was measured before an interrupt."""

    def add(self, measurement: Measurement) -> None:
        """Keeps samples of one quantity."""

    def note(self, text: str) -> None:
        """Keeps what a reader of the results has to know: what could not be measured, and why."""

    def progress(self, text: str, done: float = 0, total: float = 1) -> None:
        """What is being measured now, and how far it is."""


def samples(quick: bool) -> int:
    """Samples of a quantity."""
    return QUICK_SAMPLES if quick else SAMPLES


def warmups(quick: bool) -> int:
    """Samples before them that are recorded apart."""
    return QUICK_WARMUPS if quick else WARMUPS


class Session:
    """A run of one experiment in this process, kept in a file as it goes."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        quick: bool = False,
        options: Sequence[str] = (),
        console: Console | None = None,
    ) -> None:
        """
        Args:
            folder: of the result files.
            options: those of the command that change what is measured; an interrupted run of the same ones is gone on with.
            console: where progress is shown; nowhere unless given.
        """
        self.quick, self.console = quick, console
        command = ["torch-webgpu", "bench", experiment, *(["--quick"] if quick else []), *options]
        path = result_path(folder, experiment, command)
        self.resumed = path.exists()
        self.recorder = Recorder(path, command)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=console is None or not console.is_terminal,
        )
        self._task = self._bar.add_task("")

    @property
    def run(self) -> Run:
        """What there is by now."""
        return self.recorder.run

    def target(self, target: Target) -> int:
        """See ``Sink``."""
        return self.recorder.target(target)

    def has(self, quantity: Quantity) -> bool:
        """See ``Sink``."""
        return self.recorder.has(quantity)

    def add(self, measurement: Measurement) -> None:
        """See ``Sink``."""
        self.recorder.add(measurement)

    def note(self, text: str) -> None:
        """See ``Sink``; also shown."""
        if self.recorder.note(text) and self.console is not None:
            self.console.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)

    def progress(self, text: str, done: float = 0, total: float = 1) -> None:
        """See ``Sink``."""
        self._bar.update(self._task, description=escape(text), completed=done, total=total)

    @contextmanager
    def measuring(self) -> Iterator[Session]:
        """Shows progress inside, and marks the run as complete where nothing interrupts it."""
        try:
            with self._bar:
                yield self
        except KeyboardInterrupt:
            self.recorder.save()  # it may have come between a measurement and its file
            raise
        for number, target in enumerate(self.run.targets):  # workers have told theirs
            if not target.clocks_after:
                self.recorder.clocks_after(number, clocks(target.adapter, target.adapter_kind))
        self.recorder.finish()

    def work(self, function: str, request: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
        """Runs an experiment in a process of its own; see ``worker.work``."""
        from .worker import work

        return work(self, function, request, environment)


def result_path(folder: Path, name: str, command: Sequence[str]) -> Path:
    """The file of an interrupted run of the same command, or else the first free name: results are never overwritten."""
    number = 1
    while True:
        path = folder / (f"{name}.json" if number == 1 else f"{name}-{number}.json")
        if not path.exists():
            return path
        try:
            former = read(path)
            if not former.complete and former.command == list(command):
                return path
        except ResultError:
            pass  # somebody else's file
        number += 1
