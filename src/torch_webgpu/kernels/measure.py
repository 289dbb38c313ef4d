"""Times shapes of the matrix-vector kernel on the present adapter and finds a good one."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import _C
from ..errors import LimitError, ShaderError
from ..recipe import Graph, Tensor
from ..runtime import device
from .matvec import Dense, Int4, Int8, Norm, Weight, matvec
from .program import IDENTITY, Program, Step
from .trials import Record, Trial
from .tuning import BLOCK, Choice, Entry, adapter_name, balanced, choose, is_quantised, rule

_GATED = Program(
    ("f", "f"),
    (Step("({0} * sigmoid_({0}))", (0,), ("f",), "f"), Step("({0} * {1})", (2, 1), ("f", "f"), "f")),
)
_ADD = Program.of("({0} + {1})", ("f", "f"), ("f", "f"), "f")
#: Bytes of weights that a timed run goes through, so that caches do not help: more than any last-level cache of a GPU.
_COLD, _COLD_CPU = 192 << 20, 32 << 20
_LAUNCHES, _LAUNCHES_CPU = 200, 12
_SLOW = 1.5  # times the best so far, beyond which a shape is not timed again
_LOADS = 10  # blocks in flight an invocation; far beyond it registers run out
_FILLED = 1 << 17  # invocations that large GPUs hold at once, within a factor of 2
_TRIALS = 9
ENOUGH = 5  # shapes to be timed before the best of them is worth remembering


@dataclass(frozen=True)
class Product:
    """A matrix-vector product of a decoding step.

    Attributes:
        kind: kind of weights, as in ``tuning.BLOCK``.
        epilogue: ``gated`` (SwiGLU of two streams), ``residual``, or empty.
        norm: whether x is normed first.
    """

    kind: str
    k: int
    n: int
    streams: int = 1
    m: int = 1
    epilogue: str = ""
    norm: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of weights and scales that a launch reads."""
        bits = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}[self.kind]
        scales = {"int8": 2, "int4": 4 * (self.k // 32)}.get(self.kind, 0)
        return self.streams * self.n * (self.k * bits // 8 + scales)

    def __str__(self) -> str:
        twice = f" x{self.streams}" if self.streams > 1 else ""
        return f"{self.kind} {self.k}→{self.n}{twice}" + (f" ({self.m} rows)" if self.m > 1 else "")


def _noise(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A random matrix, filled in pieces that any binding covers."""
    out = torch.empty(rows, columns, dtype=dtype, device="webgpu")
    for piece in out.split(max(1, (16 << 20) // (columns * 4))):
        if dtype.is_floating_point:
            piece.normal_()
        else:
            piece.copy_(torch.randint(-(2**31), 2**31 - 1, piece.shape, dtype=dtype, device="webgpu"))
    return out


class Bench:
    """One product on the device: copies of the weights, and x and the result in one buffer, as a compiled plan has them."""

    def __init__(self, product: Product, activations: torch.dtype | None = None) -> None:
        p = self.product = product
        cpu = device().adapter.kind == "cpu"
        room = min(_COLD_CPU if cpu else _COLD, device().limits["maxStorageBufferBindingSize"] - 512)
        self.copies = max(1, min(256, room // (p.bytes // p.streams)) // p.streams)
        rows = self.copies * p.streams * p.n
        wide = activations or (torch.float32 if p.kind == "float32" else torch.float16)
        scale = lambda groups: torch.full((rows, groups), 0.01, dtype=torch.float16, device="webgpu")  # noqa: E731
        if p.kind == "int8":
            self.parts = [_noise(rows, p.k // 4, torch.int32).view(torch.int8), scale(1)]
        elif p.kind == "int4":
            self.parts = [_noise(rows, p.k // 8, torch.int32), scale(p.k // 32), scale(p.k // 32)]
        else:
            self.parts = [_noise(rows, p.k, getattr(torch, p.kind))]
        pad = lambda n: -(-n // 64) * 64  # noqa: E731
        arena = torch.ones(p.m * (pad(p.k) + 2 * pad(p.n)), dtype=wide, device="webgpu")
        self.x = arena[: p.m * p.k].view(p.m, p.k)
        start = p.m * pad(p.k)
        self.out = arena[start : start + p.m * p.n].view(p.m, p.n)
        start += p.m * pad(p.n)
        self.residual = arena[start : start + p.m * p.n].view(p.m, p.n)
        self.packed = wide.itemsize < 4 and p.n % 2 == 0
        self.gain = torch.ones(p.k, dtype=wide, device="webgpu")

    def _weights(self, parts: list[Tensor], copy: int) -> list[Weight]:
        p = self.product
        made: list[Weight] = []
        for s in range(p.streams):
            here = [t.narrow(0, (copy * p.streams + s) * p.n, p.n) for t in parts]
            made.append(Int8(*here) if p.kind == "int8" else Int4(*here) if p.kind == "int4" else Dense(*here))
        return made

    def microseconds(self, choice: Choice, best: float = math.inf, tries: int = 3) -> float:
        """Time of a launch, back to back with others on other copies of the weights.

        Two run lengths are timed, each waited for once: the difference of the shortest of each has no cost of waiting in
        it. A shape that is far from ``best`` is tried once.
        """
        trial = Trial(self._recorder(choice))
        try:
            return self._timed(trial, best, tries)
        finally:
            trial.forget()

    def _timed(self, trial: Trial, best: float, tries: int) -> float:
        operands = [self.x, self.residual, self.gain, *self.parts]

        def run(times: int) -> float:
            start = time.perf_counter()
            for _ in range(times):
                trial(operands, self.out, 1e-6)
            _C.synchronize()
            return time.perf_counter() - start

        run(1)  # compiles
        short = max(1, self.launches // (2 * self.copies))
        one = three = took = math.inf
        for _ in range(tries):
            one, three = min(one, run(short)), min(three, run(3 * short))
            took = (three - one if three > one else three) / (2 * short * self.copies) * 1e6
            if took > _SLOW * best:
                break
        return took

    @property
    def launches(self) -> int:
        """Launches of a timed run: fewer of large products."""
        if device().adapter.kind == "cpu":
            return _LAUNCHES_CPU
        return max(24, min(_LAUNCHES, _LAUNCHES * (8 << 20) // self.product.bytes))

    def _recorder(self, choice: Choice) -> Record:
        p = self.product
        program = _GATED if p.epilogue == "gated" else _ADD if p.epilogue == "residual" else IDENTITY

        def record(graph: Graph, inputs: list[Tensor], out: Tensor, eps: Any) -> None:
            x, residual, gain, *parts = inputs
            extras = [residual] if p.epilogue == "residual" else []
            norm = Norm(gain, eps) if p.norm else None
            for copy in range(self.copies):
                weights = self._weights(parts, copy)
                matvec(graph, x, weights, out, program=program, extras=extras, norm=norm, choice=choice)

        return record


def candidates(product: Product, packed: bool) -> Iterator[Choice]:
    """Shapes worth a trial, the likeliest first: rows a team, invocations a row, and where x is read from vary.

    Args:
        packed: whether results share words, so that odd numbers of rows are the same as even ones.
    """
    p = product
    yield choose(p.kind, p.n, p.k, p.streams, p.m)
    if device().adapter.kind == "cpu":
        yield from (Choice(rows, lanes, wg) for lanes, wg in ((1, 64), (1, 128), (8, 64), (64, 64)) for rows in (1, 2))
        return
    yield rule(p.kind, p.n, p.k, p.streams, p.m)
    blocks, fixed = p.k // BLOCK[p.kind], is_quantised(p.kind)
    enough = min(_FILLED, p.n * blocks // 2)
    found = []
    for rows in (2, 4, 8) if packed else (1, 2, 4, 8):
        for lanes in (8, 16, 32, 64, 128, 256):
            if rows * p.streams * p.m > 16 or lanes > 2 * blocks or (lanes < 32 and blocks > 16 * lanes):
                continue
            lacking = max(0.0, math.log2(enough / (-(-p.n // rows) * lanes)))
            unlikely = lacking + abs(math.log2(lanes / (16 if fixed else 32))) / 2 + abs(rows - 2) / 8
            unroll = balanced(blocks, lanes, _LOADS // (rows * p.streams * min(p.m, 2)))
            found.append((unlikely, Choice(rows, lanes, max(lanes, 128), unroll, fixed, fixed)))
    for i, (_, choice) in enumerate(sorted(found)[:_TRIALS]):
        yield choice
        if i < _TRIALS // 3:
            yield replace(choice, stage=not choice.stage, fixed=False)


def neighbours(choice: Choice, product: Product) -> Iterator[Choice]:
    """Shapes that differ from a good one in what matters less: workgroup, loads in flight, where x is read from."""
    most = min(256, device().limits["maxComputeInvocationsPerWorkgroup"])
    for workgroup in (choice.workgroup // 2, choice.workgroup * 2):
        if max(choice.lanes, 32) <= workgroup <= most:
            yield replace(choice, workgroup=workgroup)
    each = -(-product.k // BLOCK[product.kind] // choice.lanes)
    steps = -(-each // choice.unroll)
    for unroll in {-(-each // max(1, steps - 1)), -(-each // (steps + 1))} - {choice.unroll}:
        if unroll * choice.rows * product.streams <= 2 * _LOADS and unroll <= 16:
            yield replace(choice, unroll=unroll)
    yield replace(choice, stage=not choice.stage, fixed=False)
    if is_quantised(product.kind) and not choice.fixed:
        yield replace(choice, stage=True, fixed=True)
    for lanes in (choice.lanes // 2, choice.lanes * 2):
        if 4 <= lanes <= choice.workgroup:
            unroll = balanced(product.k // BLOCK[product.kind], lanes, choice.unroll * max(1, choice.lanes // lanes))
            yield replace(choice, lanes=lanes, unroll=min(unroll, 16))


def search(
    bench: Bench, deadline: float, report: Callable[[Choice, float], None] = lambda choice, us: None
) -> dict[Choice, float]:
    """Times candidates, then climbs from the best one over its neighbours.

    Args:
        deadline: ``time.perf_counter()`` after which no further trial begins (the first one always runs).
        report: called with each choice and its microseconds.

    Returns:
        Microseconds by choice.
    """
    timed: dict[Choice, float] = {}

    def trial(choice: Choice) -> None:
        if choice not in timed and (not timed or time.perf_counter() < deadline):
            try:
                timed[choice] = bench.microseconds(choice, min(timed.values(), default=math.inf))
            except (LimitError, ShaderError) as e:  # too much for this device or its compiler
                warnings.warn(f"{bench.product}: {choice} does not run: {str(e).splitlines()[0]}", stacklevel=3)
                return
            report(choice, timed[choice])

    for choice in candidates(bench.product, bench.packed):
        trial(choice)
    if not timed:
        raise LimitError(f"{bench.product}: no shape of the kernel runs on this device")
    for _ in range(3):
        best = min(timed, key=timed.__getitem__)
        for choice in neighbours(best, bench.product):
            trial(choice)
        if min(timed, key=timed.__getitem__) == best:
            break
    return timed


def entry(product: Product, timed: dict[Choice, float], adapter: str | None = None) -> Entry:
    """The line of the table that says what was found on the present adapter."""
    p = product
    implementation = device().adapter.implementation
    best = min(timed, key=timed.__getitem__)
    return Entry(adapter_name() if adapter is None else adapter, implementation, p.kind, p.n, p.k, p.streams, p.m, best)
