"""The same increment through PyTorch: op by op, and as a compiled plan of n dispatches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..errors import WebGPUError
from .cells import Cell
from .names import EAGER, HOST, INCREMENT, PLAN, WALL
from .places import wait

_WORDS = 256


def timed(device: str, run: Callable[[], object]) -> dict[str, float]:
    """Microseconds of a call on an idle device: ``host`` until it returns, ``wall`` until its work is done."""
    wait(device)
    start = time.perf_counter_ns()
    result = run()
    returned = time.perf_counter_ns()
    wait(device)
    done = time.perf_counter_ns()
    del result  # not while the clock runs
    return {WALL: (done - start) / 1e3, HOST: (returned - start) / 1e3}


def eager_cells(device: str, counts: Sequence[int], check: bool = True) -> list[Cell]:
    """``x = x + 1.0`` n times.

    Args:
        check: whether the device computes: its result is looked at once.

    Raises:
        WebGPUError: where the result is wrong.
    """
    start = torch.zeros(_WORDS, device=device)

    def chain(n: int) -> torch.Tensor:
        x = start
        with torch.inference_mode():
            for _ in range(n):
                x = x + 1.0
        return x

    if check:
        _expect("x + 1.0 op by op", chain(7), 7)
    return [
        Cell(INCREMENT, EAGER, {"n": n}, (WALL, HOST), partial(lambda n: timed(device, lambda: chain(n)), n)) for n in counts
    ]


def plan_cells(device: str, counts: Sequence[int], check: bool = True) -> list[Cell]:
    """One call of a compiled chain that is not fused: n dispatches in one plan.

    Raises:
        WebGPUError: where the result is wrong, or the plan has another number of dispatches.
    """
    from .. import _C

    start, cells = torch.zeros(_WORDS, device=device), []

    def cell(n: int) -> Cell:
        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(n):
                x = x + 1.0
            return x

        compiled = torch.compile(chain, backend="webgpu", options={"fusion": "none"}, fullgraph=True)

        def run() -> torch.Tensor:
            with torch.inference_mode():
                out: torch.Tensor = compiled(start)
                return out

        run()
        before = _C.stats()["dispatches"]
        out = run()
        made = _C.stats()["dispatches"] - before
        if made != n:
            raise WebGPUError(f"the compiled plan was to have {n} dispatches, but has {made}")
        if check:
            _expect(f"a compiled plan of {n} dispatches", out, n)
        return Cell(INCREMENT, PLAN, {"n": n}, (WALL, HOST), lambda: timed(device, run))

    for n in counts:
        torch._dynamo.reset()  # else the chains are one function with too many variants
        cells.append(cell(n))
    return cells


def _expect(what: str, found: torch.Tensor, value: float) -> None:
    if not torch.equal(found.cpu(), torch.full((_WORDS,), float(value))):
        raise WebGPUError(f"{what} gave {found[:4].tolist()}… instead of {value}")
