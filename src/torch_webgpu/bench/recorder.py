"""Keeps a run's measurements in its file as they come, so that an interrupt loses nothing and a later run goes on."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from .bounds import impossible
from .environment import environment
from .schema import PASSING, Measurement, Quantity, Run, Target, read, write


def same_target(a: Target, b: Target) -> bool:
    """Whether both are the same but for what may differ from run to run."""
    return a.model_copy(update=PASSING) == b.model_copy(update=PASSING)


class Recorder:
    """One run in the making. Every measurement is on disk before ``add`` returns."""

    def __init__(self, path: Path, command: Sequence[str] | None = None) -> None:
        """
        Args:
            path: the result file. One of the same command that was interrupted is gone on with; see ``has``.
            command: what was asked for; the process's own arguments unless given.

        Raises:
            FileExistsError: where the file holds a complete run, or one of another command.
            ResultError: where it holds something else.
        """
        self.path, self.command = path, list(command if command is not None else sys.argv)
        if path.exists():
            former = read(path)
            if former.complete or former.command != self.command:
                what = "a complete run" if former.complete else f"an interrupted run of {' '.join(former.command)}"
                raise FileExistsError(f"{path} holds {what}; choose another name, or delete it")
            self.run = former
        else:
            now = datetime.now(timezone.utc)
            self.run = Run(
                run=uuid.uuid4().hex,
                created=now,
                command=self.command,
                complete=False,
                environment=environment(),
                targets=[],
                measurements=[],
            )
        self._keys = {m.key for m in self.run.measurements}

    def target(self, target: Target) -> int:
        """The target's number in this run."""
        for number, known in enumerate(self.run.targets):
            if same_target(known, target):
                return number
        self.run.targets.append(target)
        return len(self.run.targets) - 1

    def has(self, quantity: Quantity) -> bool:
        """Whether the run already holds it."""
        return quantity.key in self._keys

    def add(self, measurement: Measurement) -> None:
        """Adds samples of one quantity and writes the file; a figure above what the device can do becomes a note instead.

        Raises:
            ValueError: for a quantity that is there already.
        """
        if self.has(measurement):
            raise ValueError(
                f"{measurement.experiment} / {measurement.workload} / {measurement.method} / {measurement.parameters} / "
                f"{measurement.metric} is measured already"
            )
        if (why := impossible(measurement, self.run.target_of(measurement))) is not None:
            self.note(f"refused: {why}")
            return
        self.run.measurements.append(measurement)
        self._keys.add(measurement.key)
        write(self.run, self.path)

    def note(self, text: str) -> bool:
        """Keeps a note of the whole run; False where it is known already."""
        if text in self.run.notes:
            return False
        self.run.notes.append(text)
        write(self.run, self.path)
        return True

    def save(self) -> None:
        """Writes what there is, if there is anything."""
        if self.run.measurements or self.run.notes:
            write(self.run, self.path)

    def clocks_after(self, number: int, clocks: Mapping[str, float]) -> None:
        """Keeps a target's clocks right after its last samples so far."""
        self.run.targets[number] = self.run.targets[number].model_copy(update={"clocks_after": dict(clocks)})

    def finish(self) -> Run:
        """Marks the run as complete."""
        self.run = self.run.model_copy(update={"complete": True})
        write(self.run, self.path)
        return self.run
