"""Fusion around linear layers: norms before them, arithmetic after them, siblings beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..kernels.matvec import Dense, Int8, Norm, Weight
from ..kernels.pointwise import same_view, same_walk
from ..kernels.program import Program
from ..kernels.program import Step as Instruction
from ..recipe import Tensor
from .conv import Conv
from .fusion import Flow, dedupe, is_temporary, stored
from .ir import Module, Pointwise, Step
from .linear import Linear, RmsNorm, weight_tensors


def fuse_norms(module: Module) -> Module:
    """An RMS norm whose result only linear layers of few rows read moves into them."""
    steps: list[Step | None] = list(module.steps)
    kept = module.output_buffers()
    flow = Flow(steps)
    for i, norm in enumerate(steps):
        if not isinstance(norm, RmsNorm) or not is_temporary(module, kept, norm.out):
            continue
        readers = flow.readers[norm.out.buffer]
        merged: list[Linear] = []
        for r in readers:
            step = steps[r]
            if r == i:
                continue
            if not isinstance(step, Linear) or step.norm is not None or step.x.buffer != norm.out.buffer:
                break
            if any(t.buffer == norm.out.buffer for t in step.extras if isinstance(t, Tensor)) or step.x.delta:
                break
            new = replace(step, x=norm.x.view(step.x.sizes, step.x.strides), norm=Norm(norm.gain, norm.eps))
            if step.x.sizes[1] != norm.out.sizes[-1] or not step.few_rows or not new.possible():
                break
            merged.append(replace(new, name=f"rms_norm+{step.name}"))
        else:
            targets = [r for r in readers if r != i]
            if not targets or flow.written_between({norm.x.buffer}, i, max(targets)):
                continue
            for r, new in zip(targets, merged, strict=True):
                steps[r] = new
            steps[i] = None
    return module.with_steps(steps)


# ---------------------------------------------------------------------------------------------------- epilogues


def regroup(t: Tensor, sizes: tuple[int, ...]) -> Tensor | None:
    """The tensor with other sizes and the same elements in the same order; None where strides allow no such view."""
    meta = torch.empty_strided(t.sizes, t.strides, device="meta")
    try:
        view = meta.view(sizes)
    except RuntimeError:
        return None
    return t.view(sizes, tuple(view.stride()))


def reorder(program: Program, order: list[int]) -> Program:
    """The program with its inputs in another order: new input ``i`` is old input ``order[i]``."""
    place = {old: new for new, old in enumerate(order)}
    n = len(program.inputs)
    steps = tuple(
        Instruction(s.form, tuple(place[a] if a < n else a for a in s.args), s.classes, s.cls) for s in program.steps
    )
    return Program(tuple(program.inputs[i] for i in order), steps)


def epilogue(layer: Linear | Conv, consumer: Pointwise) -> Linear | Conv | None:
    """The layer with the arithmetic of the elementwise step that reads its result."""
    sizes = layer.out.sizes
    program, operands = dedupe(consumer.program, consumer.operands)
    sites = [i for i, x in enumerate(operands) if isinstance(x, Tensor) and x.buffer == layer.out.buffer]
    if len(sites) != 1 or consumer.out.numel != layer.out.numel or not consumer.out.dtype.is_float:
        return None
    (site,) = sites
    whole = regroup(operands[site], sizes)
    if whole is None or whole.delta != layer.out.delta or not same_walk(whole, layer.out):
        return None
    out = regroup(consumer.out, sizes)
    moved = [regroup(x, sizes) if isinstance(x, Tensor) else x for i, x in enumerate(operands) if i != site]
    if out is None or any(x is None for x in moved):
        return None
    merged = program.inline(site, stored(layer.program, layer.out))
    rest = len(moved)
    order = [*range(rest, rest + layer.streams), *range(rest), *range(rest + layer.streams, len(merged.inputs))]
    new = replace(
        layer,
        out=out,
        program=reorder(merged, order),
        extras=[*moved, *layer.extras],
        name=f"{layer.name}+{consumer.name}",
    )
    return new if new.possible() else None


def fuse_epilogues(module: Module) -> Module:
    """Elementwise steps that are the only readers of a linear layer's or a convolution's result run in its kernel."""
    steps: list[Step | None] = list(module.steps)
    kept = module.output_buffers()
    flow = Flow(steps)
    changed = True
    while changed:
        changed = False
        for i, layer in enumerate(steps):
            if not isinstance(layer, (Linear, Conv)) or not is_temporary(module, kept, layer.out):
                continue
            readers, buffer = flow.readers[layer.out.buffer], layer.out.buffer
            if flow.writers[buffer] != [i] or len(readers) != 1:
                continue
            at = readers[0]
            consumer = steps[at]
            if flow.written_between({t.buffer for t in layer.reads()}, i, at):
                continue
            new: Linear | Conv | None = None
            if isinstance(consumer, Pointwise):
                new = epilogue(layer, consumer)
            elif isinstance(consumer, Linear) and isinstance(layer, Linear):
                new = join(consumer, layer)
            if new is not None:
                steps[at], steps[i] = new, None
                flow.move(layer, i, at)
                changed = True
    return module.with_steps(steps)


def join(consumer: Linear, other: Linear) -> Linear | None:
    """One launch of two layers over the same x, where the first takes the second's result as an extra: more streams."""
    sites = [i for i, e in enumerate(consumer.extras) if isinstance(e, Tensor) and e.buffer == other.out.buffer]
    if len(sites) != 1 or not consumer.few_rows or not _same_input(consumer, other):
        return None
    e = consumer.extras[sites[0]]
    if e.sizes != other.out.sizes or e.strides != other.out.strides or e.offset != other.out.offset:
        return None
    s, t = len(consumer.weights), len(other.weights)
    program = consumer.program.inline(s + sites[0], stored(other.program, other.out))
    extras = [x for i, x in enumerate(consumer.extras) if i != sites[0]]
    first = s + len(extras)  # the other's streams, then its extras
    order = [*range(s), *range(first, first + t), *range(s, first), *range(first + t, len(program.inputs))]
    new = replace(
        consumer,
        weights=[*consumer.weights, *other.weights],
        program=reorder(program, order),
        extras=[*extras, *other.extras],
        name=f"{consumer.name}|{other.name}",
    )
    return new if new.possible() else None


def _same_input(a: Linear, b: Linear) -> bool:
    if not same_view(a.x, b.x) or type(a.weights[0]) is not type(b.weights[0]):
        return False
    if a.norm is None or b.norm is None:
        return a.norm is b.norm
    gains = [norm.gain for norm in (a.norm, b.norm) if norm.gain is not None]
    return a.norm.eps is b.norm.eps and len(gains) != 1 and all(same_view(gain, gains[0]) for gain in gains)


# ---------------------------------------------------------------------------------------------------- siblings


def _adjacent(a: Tensor, b: Tensor) -> bool:
    """Whether ``b``'s rows follow ``a``'s in memory."""
    return (
        a.buffer == b.buffer
        and a.strides == b.strides
        and a.sizes[1:] == b.sizes[1:]
        and a.dtype is b.dtype
        and b.offset == a.offset + a.sizes[0] * a.strides[0]
    )


def _stacked(a: Tensor, rows: int) -> Tensor:
    return a.view((rows, *a.sizes[1:]), a.strides)


def _stack_weight(weight: Weight, rows: int) -> Weight:
    if isinstance(weight, Dense):
        return Dense(_stacked(weight.weight, rows))
    if isinstance(weight, Int8):
        return Int8(_stacked(weight.weight, rows), _stacked(weight.scale, rows))
    return replace(
        weight,
        weight=_stacked(weight.weight, rows),
        scale=_stacked(weight.scale, rows),
        minimum=None if weight.minimum is None else _stacked(weight.minimum, rows),
    )


def _column(t: Any) -> Tensor | None:
    """A bias as the row vector it is, or None for another extra."""
    return t if isinstance(t, Tensor) and t.strides[0] == 0 and t.strides[1] == 1 else None


def _follows(a: Linear, b: Linear) -> bool:
    """Whether one layer with both outputs could stand for both: weights and biases lie one after the other."""
    if not _same_input(a, b) or len(a.weights) != 1 or len(b.weights) != 1 or a.program != b.program:
        return False
    if len(a.extras) != len(b.extras) or a.x.sizes[0] != 1 or a.out.dtype is not b.out.dtype:
        return False
    first, second = weight_tensors(a.weights[0]), weight_tensors(b.weights[0])
    if len(first) != len(second) or not all(_adjacent(s, t) for s, t in zip(first, second, strict=True)):
        return False
    for x, y in zip(a.extras, b.extras, strict=True):
        p, q = _column(x), _column(y)
        if p is None or q is None or p.buffer != q.buffer or q.offset != p.offset + a.out.sizes[1]:
            return False
    return True


def merge_siblings(module: Module) -> Module:
    """Layers of one row over the same x whose weights lie one after the other in a buffer become one launch.

    Their results become views of one tensor. ``siblings.py`` lays the weights out so.
    """
    steps: list[Step | None] = list(module.steps)
    kept = module.output_buffers()
    moved: dict[Any, tuple[Tensor, int]] = {}
    flow = Flow(steps)
    for i, first in enumerate(steps):
        if not isinstance(first, Linear) or not _owns_result(module, kept, flow, i, first):
            continue
        chain, places = [first], [i]
        for j in range(i + 1, min(i + 24, len(steps))):
            other = steps[j]
            if not isinstance(other, Linear) or not _owns_result(module, kept, flow, j, other):
                continue
            if _follows(_total(chain), other):
                if flow.written_between({t.buffer for t in first.reads()}, i, j):
                    break
                chain.append(other)
                places.append(j)
        if len(chain) == 1:
            continue
        total = _total(chain)
        created = _new_like(module, total)
        merged = replace(total, out=created, name=f"{first.name} x{len(chain)}")
        if not merged.possible():
            module.created.pop()
            continue
        at = 0
        for step in chain:
            moved[step.out.buffer] = (created, at)
            at += step.out.sizes[1]
        for j in places[1:]:
            steps[j] = None
        steps[i] = merged
        flow = Flow(steps)

    def place(t: Tensor) -> Tensor:
        if t.buffer not in moved:
            return t
        base, at = moved[t.buffer]
        return Tensor(base.ref, base.buffer, t.dtype, t.sizes, t.strides, t.delta + at, t.offset + at)

    return module.with_steps(None if s is None else s.map_tensors(place) for s in steps)


def _owns_result(module: Module, kept: set[Any], flow: Flow, index: int, step: Linear) -> bool:
    """Whether the layer alone writes its result's buffer, all of it."""
    buffer = step.out.buffer
    return (
        is_temporary(module, kept, step.out)
        and flow.writers[buffer] == [index]
        and not step.out.delta
        and module.created[-1 - buffer].numel == step.out.numel
    )


def _total(chain: list[Linear]) -> Linear:
    """One layer with the rows of all; its ``out`` is only a size."""
    first = chain[0]
    rows = sum(step.out.sizes[1] for step in chain)
    extras = [e.view((1, rows), (0, 1)) if isinstance(e, Tensor) else e for e in first.extras]
    out = first.out.view((1, rows), (rows, 1))
    return replace(first, weights=[_stack_weight(first.weights[0], rows)], extras=extras, out=out)


def _new_like(module: Module, total: Linear) -> Tensor:
    ref = -1 - len(module.created)
    t = Tensor(ref, ref, total.out.dtype, total.out.sizes, (total.out.sizes[1], 1))
    module.created.append(t)
    return t
