"""What a language model's plans cost beside running: the time until they are there, and each kind of launch by itself."""

from __future__ import annotations

import collections
import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from .. import _C
from ..llm import Generator
from .names import LAUNCH, PROMPT_READY, STEP_READY
from .places import wait

if TYPE_CHECKING:
    from .llm_job import Measured

_LAUNCHES, _LAUNCHES_CPU = 240, 24  # of one kind in a row
_RUNS = 5


def ready(measured: Measured) -> None:
    """Seconds until the first prompt and the first step are done: compiled, or with the plans that are on disk."""
    prompt = torch.tensor([measured.loaded.prompt])
    device, size = measured.move(), prompt.shape[1]
    wait(device)
    start = time.perf_counter()
    generator = Generator(measured.model, measured.length)
    generator.prefill(prompt)
    wait(device)
    middle = time.perf_counter()
    generator.advance(1)
    wait(device)
    measured.keep(PROMPT_READY, "s", [middle - start], size, note="compiling, and the prompt itself")
    measured.keep(STEP_READY, "s", [time.perf_counter() - middle], size, note="compiling, and the step itself")


def kernels(measured: Measured) -> None:
    """Microseconds of a launch of each kind in the decode step, all layers' launches of the kind in a row.

    Launches of one kind read each layer's own weights, so that the caches of a GPU do not serve them.
    """
    prompt = torch.tensor([measured.loaded.prompt])
    device, size = measured.move(), prompt.shape[1]
    generator = Generator(measured.model, measured.length)
    generator.compile(prompt)
    assert generator._step is not None
    graph, inputs = generator._step
    plan = graph.plans[-1]
    outputs, temps, steps, may_fail, _, returned = plan.recipe

    def seconds(extra: list[Any]) -> list[float]:
        """The whole plan once, so that what the launches read is there, and then them."""
        recipe = (outputs, temps, steps + extra, may_fail, False, returned)
        handle = _C.make_plans("kernels", lambda _: recipe)
        times = []
        for _ in range(_RUNS + 1):
            generator.cache.rewind()
            generator._count.zero_()
            wait(device)
            start = time.perf_counter()
            _C.run_plans(handle, list(inputs), 1)
            with contextlib.suppress(IndexError, RuntimeError):  # out of their order they may find garbage, and complain
                wait(device)
            times.append(time.perf_counter() - start)
        return times[1:]

    kinds: dict[str, list[int]] = collections.defaultdict(list)
    for i, d in enumerate(plan.dispatches):
        kinds[f"{d.name} / {d.kernel} {d.groups}"].append(i)
    once = min(seconds([]))
    in_a_row = _LAUNCHES_CPU if measured.on_cpu else _LAUNCHES
    for kind, places in kinds.items():
        repeat = max(1, in_a_row // len(places))
        took = seconds([steps[i] for i in places] * repeat)
        each = [max(t - once, 0.0) / repeat / len(places) * 1e6 for t in took]
        read = sum(plan.dispatches[i].read for i in places) / len(places)
        rate = f"{read / min(each) / 1e3:.4g} GB/s of operands at best" if min(each) else "too short to tell"
        measured.keep(LAUNCH, "us", each, size, note=rate, kernel=kind, count=len(places), work={"bytes": read})
