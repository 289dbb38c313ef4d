"""``bench power``: joules a token of a decode, above what the device takes at idle.

A meter's counter is read around whole blocks of tokens that are long enough for it to move; what it counted while nothing
ran, just before, is taken off. Where no counter answers the rate alone is measured, with the reason in its notes: energy is
never worked out from a rated power.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import names
from .meters import Meter
from .schema import Measurement, Parameter, Quantity, Unit


@dataclass(frozen=True)
class Decode:
    """What is measured.

    Attributes:
        run: decodes ``tokens`` tokens and waits.
        settle: waits for whatever runs.
    """

    workload: str
    method: str
    tokens: int
    run: Callable[[], None]
    settle: Callable[[], None]
    parameters: dict[str, Parameter] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Protocol:
    """How long.

    Attributes:
        idle: seconds of each idle window.
        seconds: of each sample of work at least; counters move about ten times a second.
        runs: samples, and as many idle windows.
        warmup: decodes before.
    """

    idle: float = 1.0
    seconds: float = 2.0
    runs: int = 30
    warmup: int = 2


def idle_power(
    meter_list: Sequence[Meter], protocol: Protocol, sleep: Callable[[float], None] = time.sleep
) -> list[list[float]]:
    """W of each meter in windows in which nothing runs."""
    found: list[list[float]] = [[] for _ in meter_list]
    for _ in range(protocol.runs if meter_list else 0):
        before, start = [m.joules() for m in meter_list], time.perf_counter()
        sleep(protocol.idle)
        took = time.perf_counter() - start
        for watts, meter, joules in zip(found, meter_list, before, strict=True):
            watts.append((meter.joules() - joules) / took)
    return found


class _Keeps(typing.Protocol):
    """What measurements are given to: a ``Sink`` or a ``Recorder``."""

    def has(self, quantity: Quantity) -> bool: ...

    def add(self, measurement: Measurement) -> None: ...


def measure(
    kept: _Keeps, target: int, decode: Decode, meter_list: Sequence[Meter], why: Sequence[str], how: Protocol
) -> None:
    """Measures and records a decode; ``why`` says why other meters have no part in it."""
    for _ in range(how.warmup):
        decode.run()
    decode.settle()
    idle = idle_power(meter_list, how)
    rates: list[float] = []
    work: list[list[tuple[float, float, int]]] = [[] for _ in meter_list]
    for _ in range(how.runs):
        before, start, count = [m.joules() for m in meter_list], time.perf_counter(), 0
        while count == 0 or time.perf_counter() - start < (how.seconds if meter_list else 0):
            decode.run()
            count += decode.tokens
        took = time.perf_counter() - start
        for samples, meter, joules in zip(work, meter_list, before, strict=True):
            samples.append((meter.joules() - joules, took, count))
        rates.append(count / took)
    notes = [*decode.notes, *(f"No energy: {reason}." for reason in why)]
    _keep(kept, target, decode, names.RATE, "tokens/s", rates, notes)
    for meter, watts, samples in zip(meter_list, idle, work, strict=True):
        rest = sum(watts) / len(watts)
        more: dict[str, Parameter] = {"meter": meter.name}
        stated = [f"Covers {meter.covers}; {rest:.4g} W at idle subtracted."]
        energy = [(joules - rest * took) / count for joules, took, count in samples]
        _keep(kept, target, decode, names.ENERGY, "J", energy, stated, more)
        _keep(kept, target, decode, names.POWER, "W", [joules / took for joules, took, _ in samples], [], more)
        _keep(kept, target, decode, names.IDLE, "W", watts, [], more)


def _keep(
    kept: _Keeps, target: int, decode: Decode, metric: str, unit: Unit, samples: list[float], notes: list[str],
    more: dict[str, Parameter] | None = None,
) -> None:  # fmt: skip
    parameters = {**decode.parameters, "tokens": decode.tokens, **(more or {})}
    about = Quantity(
        experiment="power", workload=decode.workload, method=decode.method, target=target, parameters=parameters,
        metric=metric,
    )  # fmt: skip
    if not kept.has(about):  # else kept before an interrupt
        kept.add(Measurement(**about.model_dump(), unit=unit, samples=samples, notes=notes))
