"""A run of a measuring command: its file, what is asked for, what happens at an interrupt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .recorder import Recorder


@dataclass
class Session:
    """What a measuring command works with.

    Attributes:
        recorder: keeps every measurement at once.
        quick: few samples of small sizes, to see whether it works.
        interrupted: set where the run was stopped; the same command goes on with it.
    """

    recorder: Recorder
    quick: bool
    interrupted: bool = False


@contextmanager
def session(path: Path, quick: bool = False, command: list[str] | None = None) -> Iterator[Session]:
    """The run in ``path``, new or interrupted before; complete when the block ends, kept as it is at an interrupt.

    Args:
        command: what tells an interrupted run of the same command; the process's arguments unless given.

    Raises:
        FileExistsError: where the file holds a complete run, or one of another command.
        ResultError: where it holds something else.
    """
    current = Session(Recorder(path, command or ["torch-webgpu", *sys.argv[1:]]), quick)
    try:
        yield current
    except KeyboardInterrupt:
        current.interrupted = True
        return
    current.recorder.finish()
