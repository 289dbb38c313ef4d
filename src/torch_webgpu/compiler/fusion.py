"""Fusion of steps: elementwise producers move into their consumers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ..kernels.pointwise import may_overlap, same_view
from ..kernels.program import Program
from ..kernels.program import Step as Instruction
from ..recipe import Scalar, Tensor, product
from ..runtime import target
from .ir import Module, Pointwise, Step, is_fresh

MOST_STEPS = 64  # of a fused program
MOST_LOADS = 24
CHEAP = 4  # steps of a program that may be computed more than once
SMALL = 1 << 12  # elements that cost less than a launch, whatever is computed


# ---------------------------------------------------------------------------------------------------- data flow


class Flow:
    """Which steps read and write each buffer."""

    def __init__(self, steps: Sequence[Step | None]) -> None:
        self.readers: dict[Any, list[int]] = defaultdict(list)
        self.writers: dict[Any, list[int]] = defaultdict(list)
        for i, step in enumerate(steps):
            if step is None:
                continue
            writes = {t.buffer for t in step.writes()}
            for b in {t.buffer for t in step.reads()}:
                self.readers[b].append(i)
            for b in writes:
                self.writers[b].append(i)

    def move(self, step: Step, source: int, target: int) -> None:
        """Notes that a step's work is done by the later step that alone read its results, which exist no more."""
        for b in {t.buffer for t in step.writes()}:
            self.writers[b] = [w for w in self.writers[b] if w != source]
            self.readers[b] = [r for r in self.readers[b] if r != target]
        for b in {t.buffer for t in step.reads()}:
            self.readers[b] = sorted({target, *self.readers[b]} - {source})

    def written_between(self, buffers: Iterable[Any], start: int, end: int) -> bool:
        """Whether a step after ``start`` and before ``end`` writes one of the buffers."""
        return any(start < w < end for b in buffers for w in self.writers[b])


def is_temporary(module: Module, kept: set[Any], t: Tensor) -> bool:
    """Whether nothing outside the plan sees the buffer."""
    return is_fresh(t.buffer) and t.buffer not in kept


# ---------------------------------------------------------------------------------------------------- index spaces


def _dense_dims(t: Tensor) -> list[tuple[int, int, int]] | None:
    """(stride, size, dimension) of a tensor without gaps or overlaps, largest stride first; None for others."""
    dims = sorted(((s, n, d) for d, (n, s) in enumerate(zip(t.sizes, t.strides, strict=True)) if n > 1), reverse=True)
    step = 1
    for stride, size, _ in reversed(dims):
        if stride != step:
            return None
        step *= size
    return dims


def _split_dim(step: Pointwise, dim: int, inner: int) -> Pointwise:
    """The same loop with dimension ``dim`` cut into (rest, ``inner``)."""

    def cut(t: Tensor) -> Tensor:
        n, s = t.sizes[dim], t.strides[dim]
        sizes = (*t.sizes[:dim], n // inner, inner, *t.sizes[dim + 1 :])
        return t.view(sizes, (*t.strides[:dim], s * inner, s, *t.strides[dim + 1 :]))

    return step.map_tensors(cut)


def align(step: Pointwise, produced: Tensor) -> Pointwise | None:
    """The loop of ``step`` with dimensions cut so that each walks one dimension of ``produced`` wherever it is read."""
    dims = _dense_dims(produced)
    if dims is None:
        return None
    for _ in range(8):
        change = None
        for t in step.operands:
            if isinstance(t, Tensor) and t.buffer == produced.buffer:
                change = change or _cut_for(t, dims)
        if change is None:
            return step
        step = _split_dim(step, *change)
    return None


def _cut_for(t: Tensor, dims: list[tuple[int, int, int]]) -> tuple[int, int] | None:
    """(dimension, inner size) of a loop dimension that walks over several dimensions of the produced tensor."""
    for d, (n, s) in enumerate(zip(t.sizes, t.strides, strict=True)):
        if n == 1 or s == 0:
            continue
        home = next(((stride, size) for stride, size, _ in dims if s >= stride and s % stride == 0), None)
        if home is None:
            continue
        room = home[0] * home[1] // s
        if n > room > 1 and n % room == 0:
            return d, room
    return None


def remap(t: Tensor, produced: Tensor, operand: Tensor) -> Tensor | None:
    """The view of ``operand`` (an operand of the producer, of ``produced``'s sizes) at the elements that ``t`` reads.

    Args:
        t: a view of ``produced``'s buffer, of the consumer's sizes.
    """
    dims = _dense_dims(produced)
    rest = t.delta - produced.delta
    if dims is None or rest < 0:
        return None
    start: dict[int, int] = {}
    reach: dict[int, int] = {}
    for stride, size, d in dims:
        start[d] = reach[d] = rest // stride
        rest %= stride
        if start[d] >= size:
            return None
    if rest:
        return None
    strides = []
    for n, s in zip(t.sizes, t.strides, strict=True):
        if n == 1 or s == 0:
            strides.append(0)
            continue
        home = next(((stride, d) for stride, _, d in dims if s >= stride and s % stride == 0), None)
        if home is None:
            return None
        times, d = s // home[0], home[1]
        reach[d] += times * (n - 1)
        strides.append(times * operand.strides[d])
    if any(reach[d] >= size for _, size, d in dims):
        return None
    return operand.view(t.sizes, strides, sum(start[d] * operand.strides[d] for d in start))


# ---------------------------------------------------------------------------------------------------- inlining


def dedupe(program: Program, operands: Sequence[Any]) -> tuple[Program, list[Any]]:
    """The program with equal tensor operands taken once."""
    kept: list[Any] = []
    classes: list[str] = []
    place: dict[int, int] = {}
    for i, x in enumerate(operands):
        for j, y in enumerate(kept):
            if isinstance(x, Tensor) and isinstance(y, Tensor) and same_view(x, y):
                place[i] = j
                break
        else:
            place[i] = len(kept)
            kept.append(x)
            classes.append(program.inputs[i])
    lead, old = len(kept), len(program.inputs)
    steps = [
        Instruction(s.form, tuple(place[a] if a < old else a - old + lead for a in s.args), s.classes, s.cls)
        for s in program.steps
    ]
    return Program(tuple(classes), tuple(steps)), kept


def stored(program: Program, t: Tensor) -> Program:
    """The program followed by what storing to and loading from ``t`` would do to the value (narrow integers wrap).

    Floats keep their precision, as in other compilers: a fused half-precision chain rounds once, at its end.
    """
    d = t.dtype
    if program.cls != d.cls:
        last = len(program.inputs) + len(program.steps) - 1 if program.steps else 0
        program = Program(program.inputs, (*program.steps, Instruction("{0}", (last,), (d.cls,), d.cls)))
    if d.cls != "i" or d.itemsize == 4:
        return program
    bits = d.itemsize * 8
    form = f"extractBits({{0}}, 0u, {bits}u)" if d.name != "uint8" else "({0} & 255)"
    last = len(program.inputs) + len(program.steps) - 1 if program.steps else 0
    return Program(program.inputs, (*program.steps, Instruction(form, (last,), ("i",), "i")))


def inline(consumer: Pointwise, producer: Pointwise) -> Pointwise | None:
    """The consumer with every read of the producer's result computed in place; None where the index spaces do not fit."""
    aligned = align(consumer, producer.out)
    if aligned is None:
        return None
    program, operands = dedupe(aligned.program, aligned.operands)
    while True:
        at = next((i for i, x in enumerate(operands) if isinstance(x, Tensor) and x.buffer == producer.out.buffer), None)
        if at is None:
            break
        t = operands[at]
        moved = [remap(t, producer.out, x) if isinstance(x, Tensor) else x for x in producer.operands]
        if any(x is None for x in moved):
            return None
        program = program.inline(at, stored(producer.program, producer.out))
        operands = [x for i, x in enumerate(operands) if i != at] + moved
        if len(program.steps) > MOST_STEPS:
            return None
        program, operands = dedupe(program, operands)
    if any(isinstance(x, Tensor) and may_overlap(aligned.out, x) for x in operands):
        return None
    name = consumer.name if producer.name in consumer.name.split("+") else f"{producer.name}+{consumer.name}"
    return Pointwise(aligned.out, program, operands, name)


def binding_count(tensors: Iterable[Tensor]) -> int:
    """Storage buffers that a launch over these tensors binds."""
    return len({t.buffer for t in tensors})


def most_bindings() -> int:
    """Storage buffers that one launch may bind."""
    return min(target().limits["maxStorageBuffersPerShaderStage"], 16)


def _affordable(step: Pointwise) -> bool:
    tensors = [step.out, *step.reads()]
    return (
        binding_count(tensors) <= most_bindings()
        and len(step.reads()) <= MOST_LOADS
        and len(step.program.steps) <= MOST_STEPS
        and _words(step) <= 200
    )


def _words(step: Pointwise) -> int:
    """Uniform words at most: offsets, sizes, strides, numbers."""
    tensors = 1 + len(step.reads())
    return tensors + (tensors + 1) * step.out.ndim + 2 * len(step.operands) + 1


def _worth(producer: Pointwise, consumers: Sequence[Pointwise]) -> bool:
    """Whether computing the producer again costs less than storing and loading it."""
    count = product(producer.out.sizes)
    again = sum(c.out.numel for c in consumers)
    return again <= max(count, SMALL) or (len(producer.program.steps) <= CHEAP and not _expensive(producer.program))


def _expensive(program: Program) -> bool:
    """Whether a step calls a function (exp_, sin_, …) and not only operators."""
    return any("_(" in s.form or "pow" in s.form for s in program.steps)


def fuse_pointwise(module: Module) -> Module:
    """Moves every elementwise step into the elementwise steps that read it, where all of them can take it."""
    steps: list[Step | None] = list(module.steps)
    kept = module.output_buffers()
    flow = Flow(steps)
    for i, producer in enumerate(steps):
        if not isinstance(producer, Pointwise) or not is_temporary(module, kept, producer.out):
            continue
        buffer = producer.out.buffer
        readers = [r for r in flow.readers[buffer] if steps[r] is not None]
        if flow.writers[buffer] != [i] or not readers:
            continue
        consumers = [steps[r] for r in readers]
        if not all(isinstance(c, Pointwise) for c in consumers) or not _worth(producer, consumers):  # type: ignore[arg-type]
            continue
        sources = {t.buffer for t in producer.reads()}
        if flow.written_between(sources, i, max(readers)):
            continue
        merged = [inline(c, producer) for c in consumers]  # type: ignore[arg-type]
        if any(m is None or not _affordable(m) for m in merged):
            continue
        for r, m in zip(readers, merged, strict=True):
            steps[r] = m
        steps[i] = None
        for b in sources:
            flow.readers[b] = sorted({*(r for r in flow.readers[b] if r != i), *readers})
    return module.with_steps(steps)


def constant_operand(x: Any) -> bool:
    """Whether an operand is a number known at compile time."""
    return not isinstance(x, Tensor) and not (isinstance(x, Scalar) and x.index >= 0)
