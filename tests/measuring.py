"""What tests/test_bench_dispatch.py measures, in a process of its own: ``python measuring.py EXPERIMENT IMPLEMENTATION``.

Prints samples as JSON; the test judges them.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch_webgpu.bench.loop import METHODS, Device, Kernel, Loop, adapter_of
from torch_webgpu.bench.names import ONE_PASS, SEQUENTIAL

Samples = dict[str, list[float]]
_ATTEMPTS = 8


def undisturbed(measure: Callable[[], float]) -> float:
    """A sample in which no other process took this one's place on a core, if one of a few is so.

    What is kept is chosen by the kernel's count of such events, not by the value.
    """
    for _ in range(_ATTEMPTS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        value = measure()
        if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == before:
            break
    return value


def interleaved(cells: Mapping[str, Callable[[], float]], rounds: int, seed: int) -> Samples:
    """Samples of each, in random order within a round; a first round counts for nothing."""
    order, generator = list(cells), random.Random(seed)
    found: Samples = {name: [] for name in cells}
    for number in range(rounds + 1):
        generator.shuffle(order)
        for name in order:
            value = undisturbed(cells[name])
            if number:
                found[name].append(value)
    return found


def delay(device: Device, seed: int) -> Samples:
    """Host time of every method with and without 50 µs in which the host is kept busy, by ``method|delay|n``."""
    loop = Loop(device)

    def cell(method: str, busy: float, n: int) -> Callable[[], float]:
        return lambda: loop.run(method, n, busy).host

    cells = {f"{m}|{busy}|{n}": cell(m, busy, n) for m in METHODS for busy in (0, 50) for n in (5, 15, 40)}
    return interleaved(cells, 15, seed)


def duration(device: Device, seed: int) -> Samples:
    """A kernel that lasts, by one long dispatch and by n dispatches; ``|wall`` and ``|gpu``.

    One workgroup, so that a rasteriser needs one core; less than a millisecond, so that it often keeps it.
    """
    rounds, longer = 2000, 10
    loops = {spin: Loop(device, Kernel(spin=spin, workgroups=1)) for spin in (0, rounds, rounds * longer)}

    def cell(spin: int, n: int, gpu: bool) -> Callable[[], float]:
        def run() -> float:
            sample = loops[spin].run("one pass", n, timestamps=gpu)
            return sample.wall if sample.gpu is None else sample.gpu

        return run

    cells: dict[str, Callable[[], float]] = {}
    for metric in ("wall", "gpu"):
        cells |= {f"{spin}|{n}|{metric}": cell(spin, n, metric == "gpu") for spin in (0, rounds) for n in (2, 4, 8)}
        cells |= {f"{spin}|1|{metric}": cell(spin, 1, metric == "gpu") for spin in (0, rounds * longer)}
    found = interleaved(cells, 31, seed)
    for loop in loops.values():
        loop.verify()
    return found


def direct(device: Device, seed: int, library: str) -> Samples:
    """The instrument's loops, phases, and a loop that was written apart from them, in nanoseconds a dispatch."""
    kernel, handle = Kernel(), device.handle
    loop = Loop(device, kernel)
    pipeline, layout = handle.create_pipeline(kernel.code(0), (True,), 0)
    plain = ctypes.CDLL(library).direct_loop
    plain.restype = ctypes.c_double
    pointers = [ctypes.c_void_p(p) for p in (*handle.pointers()[:2], pipeline, layout)]
    size, total = kernel.workgroups * 64 * 4, 1000

    def directly(batch: int) -> float:
        arguments = (ctypes.c_uint64(size), *(ctypes.c_uint32(v) for v in (kernel.workgroups, total, batch)))
        return float(plain(handle.library.encode(), *pointers, *arguments))

    def of(method: str) -> Callable[[], float]:
        return lambda: loop.run(method, total).host * 1e3 / total

    cells = {
        SEQUENTIAL: of(SEQUENTIAL),
        f"{SEQUENTIAL}|direct": lambda: directly(1),
        ONE_PASS: of(ONE_PASS),
        f"{ONE_PASS}|direct": lambda: directly(total),
        "phases": lambda: sum(loop.phases(total).values()) * 1e3 / total,
    }
    return interleaved(cells, 31, seed)


def repeated(device: Device, seed: int) -> Samples:
    """The same lines twice, one after the other."""
    loop = Loop(device)
    found: Samples = {}

    def cell(method: str, n: int) -> Callable[[], float]:
        return lambda: loop.run(method, n).host

    for run in (0, 1):
        cells = {f"{m}|{run}|{n}": cell(m, n) for m in (SEQUENTIAL, ONE_PASS) for n in (100, 300, 1000)}
        found |= interleaved(cells, 31, seed + run)
    return found


def instructions(device: Device, seed: int, library: str) -> Samples:
    """Has callgrind count what different numbers of dispatches take; the counts are in its files."""
    import torch

    from torch_webgpu.bench.dispatch import open_tensors

    callgrind = ctypes.CDLL(library)
    open_tensors(device)
    loop = Loop(device)
    x, y = torch.zeros(256, device="webgpu"), torch.ones(256, device="webgpu")

    def eager(n: int) -> None:
        with torch.inference_mode():
            for _ in range(n):
                x + y
        torch.get_device_module("webgpu").synchronize()

    for run in (lambda n: loop.run(SEQUENTIAL, n), lambda n: loop.run(ONE_PASS, n), eager):
        run(50)
        for n in (100, 600):
            callgrind.start_counting()
            run(n)
            callgrind.stop_counting()
    return {}


def main() -> None:
    """See the module."""
    experiment, implementation, *rest = sys.argv[1:]
    measure: Any = globals()[experiment]
    device = Device(adapter_of(implementation))
    number = 0
    while True:  # an independent try a line, as long as the test asks for one
        print(json.dumps(measure(device, number, *rest)), flush=True)
        number += 1
        if not sys.stdin.readline():
            break
    os._exit(0)  # drivers that crash while they unload have nothing left to say


if __name__ == "__main__":
    main()
