"""Takes samples of many quantities in random order, so that a drift of the machine's speed meets all of them alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .schema import Experiment, Measurement, Parameter, Quantity, Unit, Work
from .session import samples, warmups

if TYPE_CHECKING:
    from .session import Sink

_SEED = 20260401


@dataclass(frozen=True)
class Cell:
    """What one call measures.

    Attributes:
        metrics: what ``run`` returns a value of each time.
        run: measures once.
        notes: what ``run`` has learned, asked for after all samples.
        work: of one call, as in ``Measurement``.
    """

    workload: str
    method: str
    parameters: Mapping[str, Parameter]
    metrics: tuple[str, ...]
    run: Callable[[], Mapping[str, float]]
    unit: Unit = "us"
    notes: Callable[[], list[str]] = list
    work: Work = field(default_factory=dict)

    def quantities(self, experiment: Experiment, target: int) -> list[Quantity]:
        """One a metric."""
        return [
            Quantity(
                experiment=experiment,
                workload=self.workload,
                method=self.method,
                target=target,
                parameters=dict(self.parameters),
                metric=metric,
            )
            for metric in self.metrics
        ]

    def __str__(self) -> str:
        return ", ".join([self.workload, self.method, *(f"{k}={v}" for k, v in self.parameters.items())])


@dataclass
class _Taken:
    warmup: dict[str, list[float]] = field(default_factory=dict)
    kept: dict[str, list[float]] = field(default_factory=dict)


def measure(
    sink: Sink,
    experiment: Experiment,
    target: int,
    cells: Sequence[Cell],
    title: str,
    rounds: tuple[int, int] | None = None,
) -> None:
    """Samples every cell that the run does not hold yet, each once a round, and keeps what came out.

    A cell that raises what the device has complained of is left out with a note.

    Args:
        title: what progress calls it.
        rounds: how many come before those that count, and how many count; the session's own unless given.
    """
    from ..errors import WebGPUError  # imports torch, which a session needs only in its workers

    todo = [c for c in cells if not all(sink.has(q) for q in c.quantities(experiment, target))]
    taken = [_Taken() for _ in todo]
    failed: set[int] = set()
    order, generator = list(range(len(todo))), random.Random(_SEED)
    first, counting = rounds or (warmups(sink.quick), samples(sink.quick))
    for number in range(first + counting):
        generator.shuffle(order)
        for done, i in enumerate(order):
            if i in failed:
                continue
            sink.progress(title, number + done / len(order), first + counting)
            try:
                values = todo[i].run()
            except WebGPUError as e:
                failed.add(i)
                sink.note(f"{title}: {todo[i]}: {type(e).__name__}: {e}")
                continue
            for metric, value in values.items():
                (taken[i].warmup if number < first else taken[i].kept).setdefault(metric, []).append(value)
    for i, cell in enumerate(todo):
        if i not in failed:
            _keep(sink, experiment, target, cell, taken[i])


def _keep(sink: Sink, experiment: Experiment, target: int, cell: Cell, taken: _Taken) -> None:
    for quantity in cell.quantities(experiment, target):
        if not sink.has(quantity):
            sink.add(
                Measurement(
                    **quantity.model_dump(),
                    unit=cell.unit,
                    samples=taken.kept[quantity.metric],
                    warmup=taken.warmup.get(quantity.metric, []),
                    work=cell.work,
                    notes=cell.notes(),
                )
            )
