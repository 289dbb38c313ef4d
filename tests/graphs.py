"""Random small graphs as Dynamo hands them to a backend, together with what eager PyTorch makes of them on the CPU.

Every op runs on the CPU as it is drawn, so a graph is valid by construction, and the reference with all its mutations and
aliases is there when the graph is. Numbers are small whole numbers wherever possible: then results are compared to the bit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

DEVICE = "webgpu"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8)
DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16, *WHOLE[:3], torch.bool, *WHOLE[3:])
LARGEST_WHOLE = {torch.float32: 2**22, torch.float16: 2**10, torch.bfloat16: 2**7}  # twice that is still exact
MOST_ELEMENTS = 1500

Choose = Callable[[Sequence[Any]], Any]


@dataclass
class Value:
    """A tensor of the graph: its node, and the tensor that eager PyTorch has there."""

    node: fx.Node
    tensor: torch.Tensor

    @property
    def storage(self) -> int:
        """Which memory it lies in."""
        return self.tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class Layout:
    """An input: a view of a base."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass
class Drawn:
    """A graph and its reference.

    Attributes:
        module: outputs a tuple.
        bases: storages of the inputs, as they are before a call.
        layouts: of the inputs.
        after: the same storages after the call on the CPU; live, shared with ``results``.
        results: what the call returns on the CPU.
        errors: how far a storage's numbers may be from the reference; 0 where it is exact.
    """

    module: fx.GraphModule
    bases: list[torch.Tensor]
    layouts: list[Layout]
    after: list[torch.Tensor]
    results: list[torch.Tensor]
    errors: dict[int, float]

    def inputs(self, device: str = DEVICE) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Fresh copies on a device: the bases, and the inputs, which are views of them."""
        bases = [b.to(device, copy=True) for b in self.bases]
        made: list[torch.Tensor] = []
        for i, layout in enumerate(self.layouts):
            twin = self.layouts.index(layout)  # the same layout twice is the same tensor twice
            view = bases[layout.base].as_strided(layout.sizes, layout.strides, layout.offset)
            made.append(made[twin] if twin < i else view)
        return bases, made

    def error_of(self, tensor: torch.Tensor) -> float:
        """Tolerance of a tensor of the reference."""
        return self.errors.get(tensor.untyped_storage()._cdata, 0.0)


class Rejected(Exception):  # noqa: N818
    """The op that was drawn does not fit; the graph goes on without it."""


def magnitude(t: torch.Tensor) -> float:
    """Largest absolute value; 0 of nothing."""
    return float(t.detach().double().abs().max()) if t.numel() else 0.0


def places(t: torch.Tensor) -> list[int]:
    """Where in its storage each element lies."""
    found = torch.full(t.shape, int(t.storage_offset()), dtype=torch.int64)
    for d, (n, step) in enumerate(zip(t.shape, t.stride(), strict=True)):
        found += (torch.arange(n) * step).view([-1 if i == d else 1 for i in range(t.ndim)])
    return found.flatten().tolist()  # type: ignore[no-any-return]


def overlaps_itself(t: torch.Tensor) -> bool:
    """Whether two elements lie at one place."""
    return not t.is_contiguous() and len(set(places(t))) < t.numel()


def overlap_partly(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors share some elements and are not the same."""
    if x.untyped_storage()._cdata != y.untyped_storage()._cdata or (
        x.storage_offset() == y.storage_offset() and ((x.shape, x.stride()) == (y.shape, y.stride()))
    ):
        return False
    return not set(places(x)).isdisjoint(places(y))


@dataclass
class Builder:
    """Draws a graph op by op. ``choose`` picks one of a sequence."""

    choose: Choose
    plain: bool = False  # whether inputs are contiguous and lie apart
    dtypes: tuple[torch.dtype, ...] = DTYPES
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: list[Value] = field(default_factory=list)
    bases: list[torch.Tensor] = field(default_factory=list)
    pristine: list[torch.Tensor] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    errors: dict[int, float] = field(default_factory=dict)
    keep: list[torch.Tensor] = field(default_factory=list)  # storages stay alive, so that their addresses name them

    # ------------------------------------------------------------------------------------------ drawing

    def integer(self, low: int, high: int) -> int:
        """Between both, inclusive."""
        return int(self.choose(range(low, high + 1)))

    def chance(self, of: int) -> bool:
        """One in ``of``; the simplest choice is False."""
        return self.integer(0, of - 1) == of - 1

    def value(self, test: Callable[[torch.Tensor], bool] = lambda t: True) -> Value:
        """One of the tensors so far; Rejected if none passes the test."""
        found = [v for v in self.values if test(v.tensor)]
        if not found:
            raise Rejected
        if self.chance(2):
            found = found[-3:]  # so that chains grow long
        return self.choose(found)  # type: ignore[no-any-return]

    def dim(self, t: torch.Tensor) -> int:
        """A dimension, counted from either end."""
        if not t.ndim:
            raise Rejected
        return self.integer(0, t.ndim - 1) - (t.ndim if self.chance(3) else 0)

    def shape(self) -> tuple[int, ...]:
        """Up to three dimensions out of few sizes, so that many pairs broadcast."""
        return tuple(self.choose((3, 1, 2, 5, 4, 3, 0 if self.chance(4) else 2)) for _ in range(self.integer(0, 3)))

    def number(self) -> Any:
        """A Python number."""
        return self.choose((2, 1, 0, -1, 3, 0.5, True, -2))

    def exact(self, v: Value) -> bool:
        """Whether its numbers are those of the device to the bit."""
        return not self.errors.get(v.storage)

    # ------------------------------------------------------------------------------------------ inputs

    def fill(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Small whole numbers, some negative where the dtype has such."""
        start = self.integer(0, 6)
        numbers = (torch.arange(count) * 5 + start) % 7
        return (numbers % 2 == 0) if dtype is torch.bool else (numbers if dtype is torch.uint8 else numbers - 3).to(dtype)

    def new_input(self, sizes: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> Value:
        """A further input: contiguous, strided, expanded, or overlapping an earlier one."""
        if sizes is None and self.layouts and not self.plain and self.chance(5):
            return self._place(self.choose(self.layouts))
        kind = (
            "plain"
            if sizes is not None or self.plain
            else self.choose(("plain", "plain", "permuted", "stepped", "expanded", "shared"))
        )
        sizes = self.shape() if sizes is None else sizes
        dtype = self.choose(self.dtypes) if dtype is None else dtype
        strides = [math.prod(max(n, 1) for n in sizes[d + 1 :]) for d in range(len(sizes))]
        if kind == "permuted":
            strides = [math.prod(max(n, 1) for n in sizes[:d]) for d in range(len(sizes))]
        elif kind == "stepped":
            strides = [s * self.choose((2, 1, 3)) if d == len(sizes) - 1 else s * 3 for d, s in enumerate(strides)]
        elif kind == "expanded" and sizes:
            strides[self.integer(0, len(sizes) - 1)] = 0
        extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True) if n > 0)
        offset = self.choose((0, 0, 1, 3)) if kind != "plain" else 0
        if kind == "shared":
            for base, t in enumerate(self.bases):
                if t.numel() >= extent + offset:
                    return self._place(Layout(base, sizes, tuple(strides), offset))
        storage = self.fill(extent + offset + self.choose((0, 2)), dtype)
        self.pristine.append(storage.clone())
        self.bases.append(storage)
        return self._place(Layout(len(self.bases) - 1, sizes, tuple(strides), offset))

    def _place(self, layout: Layout) -> Value:
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        if placeholders:
            with self.graph.inserting_after(placeholders[-1]):
                node = self.graph.placeholder(f"x{len(placeholders)}")
        else:
            node = self.graph.placeholder("x0")
        self.layouts.append(layout)
        tensor = self.bases[layout.base].as_strided(layout.sizes, layout.strides, layout.offset)
        return self._add(node, tensor)

    def _add(self, node: fx.Node, tensor: torch.Tensor) -> Value:
        value = Value(node, tensor)
        node.meta["example_value"] = _described(tensor)
        self.values.append(value)
        self.keep.append(tensor)
        return value

    # ------------------------------------------------------------------------------------------ ops

    def call(self, target: Any, *args: Any, rough: bool = False, growth: float = 0.0, **kwargs: Any) -> Any:
        """Runs an op on the CPU and puts it into the graph; returns its new values.

        Args:
            target: a function, or the name of a tensor method.
            rough: whether its numbers are rounded.
            growth: how errors of the operands grow; 0 means by the largest number among operands and results.

        Raises:
            Rejected: where the op raises, or its numbers grow too large to be compared.
        """
        operands = [v for v in _flat((args, kwargs)) if isinstance(v, Value)]
        before = [(v.tensor, v.tensor.untyped_storage()._cdata, _bytes(v.tensor).clone()) for v in operands]
        versions = {v.storage: v.tensor._version for v in operands}
        plain_args, plain_kwargs = _map((args, kwargs), lambda v: v.tensor)
        plain_kwargs = {k: v for k, v in plain_kwargs.items() if k != "device"}
        function = getattr(torch.Tensor, target) if isinstance(target, str) else target
        largest = max([magnitude(v.tensor) for v in operands], default=0.0)
        incoming = sum(self.errors.get(s, 0.0) for s in {v.storage for v in operands})
        try:
            result = function(*plain_args, **plain_kwargs)
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as e:
            raise Rejected from e
        changed = [v for v in operands if v.tensor._version != versions[v.storage]]
        # Some writes to elements that share memory with each other, or with what is read, are allowed; none is defined.
        undefined = any(
            overlaps_itself(v.tensor) or any(overlap_partly(v.tensor, o.tensor) for o in operands) for v in changed
        )
        produced = [r for r in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(r, torch.Tensor)]
        touched = [*(v.tensor for v in changed), *produced]
        try:
            if undefined:
                raise Rejected
            errors = self._errors(touched, set(versions), changed, rough, largest, incoming, growth)
        except Rejected:
            for t, _, saved in before:
                _bytes(t).copy_(saved)
            raise
        self.errors.update(errors)
        node = self._node(target, args, kwargs)
        if isinstance(result, (tuple, list)):
            found = []
            for i, part in enumerate(result):
                item = self.graph.call_function(operator.getitem, (node, i))
                found.append(self._add(item, part))
            return found
        return self._add(node, result) if isinstance(result, torch.Tensor) else None

    def _errors(
        self,
        touched: list[torch.Tensor],
        known: set[int],
        changed: list[Value],
        rough: bool,
        largest: float,
        incoming: float,
        growth: float,
    ) -> dict[int, float]:
        found: dict[int, float] = {}
        written = {v.storage for v in changed}
        for t in touched:
            storage = t.untyped_storage()._cdata
            if storage in known and storage not in written:
                continue  # a view
            if t.numel() > MOST_ELEMENTS:
                raise Rejected
            size = magnitude(t)
            if not math.isfinite(size):
                raise Rejected
            if not t.dtype.is_floating_point:
                if incoming and not growth:
                    raise Rejected  # a small error may become a whole one
                found.setdefault(storage, 0.0)
                continue
            whole = bool((t == t.round()).all()) and size <= LARGEST_WHOLE[t.dtype]
            if rough or incoming or not whole:
                eps = torch.finfo(t.dtype).eps
                error = 4 * eps * max(size, largest if rough else 0.0, 1e-3) + incoming * (growth or max(1.0, largest, size))
                error = max(error, self.errors.get(storage, 0.0) if storage in known else 0.0)
                if error > 0.25 * max(size, 1.0):
                    raise Rejected
                found[storage] = max(error, found.get(storage, 0.0))
        return found

    def _node(self, target: Any, args: Any, kwargs: Any) -> fx.Node:
        node_args, node_kwargs = _map((args, kwargs), lambda v: v.node)
        if isinstance(target, str):
            return self.graph.call_method(target, node_args, node_kwargs)
        return self.graph.call_function(target, node_args, node_kwargs)

    # ------------------------------------------------------------------------------------------ the whole

    def finish(self, outputs: Sequence[Value]) -> Drawn:
        """The graph with these outputs."""
        self.graph.output(tuple(v.node for v in outputs))
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        return Drawn(module, self.pristine, self.layouts, self.bases, [v.tensor for v in outputs], self.errors)


def _described(t: torch.Tensor) -> torch.Tensor:
    """Shape, strides and place of a tensor, as Dynamo notes them."""
    base = torch.empty(t.untyped_storage().nbytes() // t.itemsize, dtype=t.dtype, device="meta")
    return base.as_strided(t.shape, t.stride(), t.storage_offset())


def _bytes(t: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage."""
    storage = t.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [x for v in value for x in _flat(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in _flat(v)]
    return [value]


def _map(value: Any, change: Callable[[Value], Any]) -> Any:
    if isinstance(value, Value):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_map(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    return value
