"""What adapters can do at most: of known boards by their datasheets, of others by measuring.

A figure above it is no measurement, whatever the timer said: something was not waited for, or not computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .schema import Target


@dataclass(frozen=True)
class Peak:
    """The most of an adapter.

    Attributes:
        flops: floating-point operations a second in float32, by the vector units.
        matrix: the same in float16 by matrix units, dense; ``flops`` where there are none.
        bytes: of memory a second.
        measured: by ``measure``, which finds what its kernels reach, so less than there may be.
    """

    flops: float
    matrix: float
    bytes: float
    measured: bool = False

    @property
    def slack(self) -> float:
        """Factor that a figure may be above it: boards with raised clocks; other load while the peak was measured."""
        return 4.0 if self.measured else 1.15


#: Part of the adapter's name: TFLOP/s (float32), TFLOP/s (float16, matrix units, dense), GB/s; the vendors' datasheets. Of
#: boards that share a name the fastest. The first that fits counts.
_BOARDS: tuple[tuple[str, float, float, float], ...] = (
    ("b200", 80, 2250, 8000), ("h200", 67, 989, 4800), ("h100", 67, 989, 3900), ("a100", 19.5, 312, 2039),
    ("l40s", 91.6, 362, 864), ("nvidia l4", 30.3, 121, 300), ("a10", 31.2, 125, 600), ("tesla t4", 8.1, 65, 320),
    ("v100", 16.4, 130, 1134),
    ("rtx 5090", 104.8, 419, 1792), ("rtx 5080", 56.3, 225, 960), ("rtx 4090", 82.6, 330, 1008),
    ("rtx 4080", 52.2, 209, 736), ("rtx 3090", 40, 160, 1008), ("rtx 3080", 34.1, 136, 912), ("mi300x", 163.4, 1307, 5300),
    ("7900 xtx", 61.4, 123, 960),
    ("m1 ultra", 21, 42, 800), ("m1 max", 10.4, 20.8, 400), ("m1 pro", 5.2, 10.4, 200), ("apple m1", 2.6, 5.2, 68),
    ("m2 ultra", 27.2, 54.4, 800), ("m2 max", 13.6, 27.2, 400), ("m2 pro", 6.8, 13.6, 200), ("apple m2", 3.6, 7.2, 100),
    ("m3 ultra", 32.8, 65.6, 819), ("m3 max", 16.4, 32.8, 400), ("m3 pro", 7.4, 14.8, 150), ("apple m3", 4.1, 8.2, 100),
    ("m4 max", 18.4, 36.8, 546), ("m4 pro", 9.3, 18.6, 273), ("apple m4", 4.6, 9.2, 120),
)  # fmt: skip


def published(adapter: str) -> Peak | None:
    """Of a board by its name; None for one that is not known here."""
    name = adapter.lower()
    for part, flops, matrix, bandwidth in _BOARDS:
        if part in name:
            return Peak(flops * 1e12, matrix * 1e12, bandwidth * 1e9)
    return None


def peak_of(target: Target) -> Peak | None:
    """Of a target: its board's, or what was measured when the run began; None where neither is known."""
    if target.adapter_kind == "null":
        return None
    found = published(target.adapter)
    if found is None and target.peak:
        flops = float(target.peak["flops"])
        found = Peak(flops, 2 * flops, float(target.peak["bytes"]), measured=True)
    return found


# ---------------------------------------------------------------------------------------------------- measuring

_ENOUGH = 0.02  # seconds of a run that counts
_RUNS = 3
_WAITS = 20
_LARGE, _LARGE_CPU = 256 << 20, 32 << 20  # bytes copied: more than a GPU's caches hold; on a CPU, little time
_INVOCATIONS = 1 << 18
_VECTORS = 4  # of four numbers, that each invocation works on side by side


def measured(device: str, on_cpu: bool) -> dict[str, float]:
    """``flops`` (float32) and ``bytes`` a second that simple kernels reach on a device of PyTorch; in less than a second.

    Args:
        on_cpu: whether the processor computes; then it is the processor that is measured, by PyTorch's own kernels.
    """
    import torch

    device = "cpu" if on_cpu else device
    arithmetic = _arithmetic() if device == "webgpu" else _product(device, on_cpu)
    x = torch.zeros((_LARGE_CPU if on_cpu else _LARGE) // 4, device=device)
    y = torch.empty_like(x)

    def copies(count: int) -> float:
        for _ in range(count):
            y.copy_(x)
        return 2.0 * count * x.numel() * x.element_size()

    return {"flops": _fastest(arithmetic, device), "bytes": _fastest(copies, device)}


def _fastest(run: Callable[[int], float], device: str) -> float:
    """Work a second of ``run(count)``, which returns what it did; the best of a few runs that are long enough."""
    from .places import wait

    count, best, long = 1, 0.0, 0
    run(1)
    while long < _RUNS:
        wait(device)
        start = time.perf_counter()
        work = run(count)
        wait(device)
        took = time.perf_counter() - start
        if took < _ENOUGH:
            count *= 2
        else:
            best, long = max(best, work / took), long + 1
    return best


def _arithmetic() -> Callable[[int], float]:
    """Multiplications and additions in registers, by a kernel of its own."""
    import torch

    from .handwritten import Chain, Kernel

    invocations, rounds = _INVOCATIONS, 256
    names = "abcd"[:_VECTORS]
    start = "".join(f"  var {v} = vec4<f32>(ld_x(i) + {k}.0);\n" for k, v in enumerate(names))
    step = "".join(f" {v} = {v} * m + n;" for v in names)
    body = (
        f"{start}  let m = vec4<f32>(ld_x(i) + 0.5);\n  let n = vec4<f32>(ld_x(i) + 0.25);\n"
        f"  for (var k = 0u; k < {rounds}u; k++) {{{step} }}\n"
        f"  let s = {' + '.join(names)};\n  st_y(i, s.x + s.y + s.z + s.w);"
    )
    chain = Chain([Kernel("arithmetic", ["x"], "y", body, invocations // 64)], {}, [invocations])
    x = torch.zeros(invocations, device="webgpu")

    def run(count: int) -> float:
        for _ in range(count):
            chain(x=x)
        return float(count) * invocations * rounds * _VECTORS * 4 * 2

    return run


def _product(device: str, on_cpu: bool) -> Callable[[int], float]:
    """A product of matrices by the library that PyTorch uses on the device."""
    import torch

    size = 512 if on_cpu else 4096
    a, b = torch.ones(size, size, device=device), torch.ones(size, size, device=device)

    def run(count: int) -> float:
        for _ in range(count):
            torch.mm(a, b)
        return 2.0 * count * size**3

    return run


def wait_floor(device: str) -> float:
    """Microseconds of the shortest of some waits for one tiny launch: what a poll's tick adds to each wait."""
    import torch

    from .places import wait

    x, least = torch.zeros(1, device=device), float("inf")
    for _ in range(_WAITS):
        start = time.perf_counter()
        x.add_(1.0)
        wait(device)
        least = min(least, time.perf_counter() - start)
    return least * 1e6


def with_state(target: Target, device: str) -> Target:
    """A target on a device of PyTorch with what has to be found out where it is used: see ``Target``.

    Peaks are measured only where no datasheet is known.
    """
    update: dict[str, Any] = {"wait_us": wait_floor(device)}
    if published(target.adapter) is None:
        update["peak"] = measured(device, target.adapter_kind == "cpu")
    if device == "webgpu":
        from ..kernels.tuning import counts

        update["tuned"] = counts()
    return target.model_copy(update=update)
