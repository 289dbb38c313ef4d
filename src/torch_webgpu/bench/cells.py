"""Takes samples of many quantities in random order, so that a drift of the machine's speed meets all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import WebGPUError
from .sampling import Budget
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
    """What a cell has given by now.

    Attributes:
        why: it takes no more part; empty after the full number of samples.
    """

    warmup: dict[str, list[float]] = field(default_factory=dict)
    kept: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0
    spent: float = 0.0
    why: str | None = None

    def add(self, values: Mapping[str, float], seconds: float, budget: Budget) -> None:
        """Keeps the values of one call, and asks whether they are enough."""
        kept = self.warmup if self.count < budget.warmup else self.kept
        for metric, value in values.items():
            kept.setdefault(metric, []).append(value)
        self.count, self.spent = self.count + 1, self.spent + seconds
        if self.kept:
            reasons = [budget.enough(samples, self.spent) for samples in self.kept.values()]
            self.why = None if None in reasons else max(r or "" for r in reasons)


def measure(
    sink: Sink, experiment: Experiment, target: int, cells: Sequence[Cell], title: str, budget: Budget | None = None
) -> None:
    """Samples every cell that the run does not hold yet, each once a round, and keeps what came out.

    A cell that raises what the device has complained of is left out with a note.

    Args:
        title: what progress calls it.
        budget: when a cell has enough samples; the others go on without it. The session's number of samples unless given.
    """
    budget = budget or Budget(warmups(sink.quick), samples(sink.quick))
    todo = [c for c in cells if not all(sink.has(q) for q in c.quantities(experiment, target))]
    taken = [_Taken() for _ in todo]
    order, generator = list(range(len(todo))), random.Random(_SEED)
    total, number = budget.warmup + budget.most, 0
    while order:
        generator.shuffle(order)
        for done, i in enumerate(list(order)):
            sink.progress(title, number + done / len(order), total)
            start = time.perf_counter()
            try:
                values = todo[i].run()
            except WebGPUError as e:
                order.remove(i)
                taken[i].kept.clear()
                sink.note(f"{title}: {todo[i]}: {type(e).__name__}: {e}")
                continue
            taken[i].add(values, time.perf_counter() - start, budget)
            if taken[i].why is not None:
                order.remove(i)
        number += 1
    for cell, found in zip(todo, taken, strict=True):
        if found.kept:
            _keep(sink, experiment, target, cell, found)


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
                    notes=[*cell.notes(), *([taken.why] if taken.why else [])],
                )
            )
