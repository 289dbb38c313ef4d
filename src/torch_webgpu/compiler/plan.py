"""From steps to a plan: temporaries placed in arenas, launches resolved, as plain tuples that the native core replays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..recipe import REF_ERROR, REF_OUTPUT, REF_TEMP, Graph, Scalar, Tensor
from ..runtime import target
from .ir import Module, Step, is_fresh
from .memory import Lifetime, Placement, peak, plan
from .origins import Origins

LARGEST_ARENA = 128 << 20


@dataclass(frozen=True)
class Binding:
    """A tensor that a launch binds.

    Attributes:
        name: in the shader.
        written: whether the launch may write it.
        ref: as the native core knows it (``REF_OUTPUT``, ``REF_TEMP``, ``REF_ERROR``; below them the graph's inputs).
        start, size: bytes: from the start of the input, output or arena, and how many.
    """

    name: str
    written: bool
    ref: int
    start: int
    size: int


@dataclass(frozen=True)
class Dispatch:
    """One launch of a plan, for people.

    Attributes:
        name: the op or ops.
        kernel: which shader.
        read, written: bytes of the operands' extents.
        pipeline: the native core's number of it; ``runtime.shader_of`` has its WGSL.
        modules: paths of the ``nn.Module`` whose work it does.
    """

    name: str
    kernel: str
    groups: tuple[int, int, int]
    read: int
    written: int
    pipeline: int
    modules: tuple[str, ...] = ()
    bindings: tuple[Binding, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What is replayed.

    Attributes:
        recipe: for the native core (``bridge.cpp``).
        dispatches: exactly the launches of a replay.
        arenas: bytes of temporaries.
        temporaries, peak: bytes of all of them together, and of those that are alive at once.
    """

    recipe: tuple[Any, ...]
    dispatches: list[Dispatch]
    arenas: tuple[int, ...]
    outputs: int
    notes: list[str] = field(default_factory=list)
    temporaries: int = 0
    peak: int = 0


class _Resolved(Graph):
    """Launches with final references; notes each for ``explain``."""

    def __init__(self) -> None:
        super().__init__("")
        self.dispatches: list[Dispatch] = []
        self.modules: tuple[str, ...] = ()

    def launch(self, name: str, args: Any, words: Any, source: Any, groups: tuple[int, int, int], static: Any = ()) -> None:
        super().launch(name, args, words, source, groups, static)
        bound = tuple(
            Binding(arg, mode not in "rv", t.ref, t.delta * t.dtype.itemsize, t.extent * t.dtype.itemsize)
            for arg, t, mode in args
        )
        size = lambda writes: sum(b.size for b in bound if b.written == writes and b.ref != REF_ERROR)  # noqa: E731
        self.dispatches.append(
            Dispatch(self.op, name, groups, size(False), size(True), self.steps[-1][0], self.modules, bound)
        )

    def new(self, *args: Any, **kwargs: Any) -> Tensor:
        raise RuntimeError(f"{self.op}: a temporary after memory planning")


def _lifetimes(module: Module, keep: set[Any]) -> tuple[list[Lifetime], set[frozenset[Any]]]:
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    apart: set[frozenset[Any]] = set()
    for i, step in enumerate(module.steps):
        reads, writes = {t.buffer for t in step.reads()}, {t.buffer for t in step.writes()}
        for b in reads | writes:
            first.setdefault(b, i)
            last[b] = i
        apart.update(frozenset((w, b)) for w in writes for b in reads | writes if w != b)
    fresh = [(t.buffer, t) for t in module.created]
    lives = [
        Lifetime(b, max(t.extent * t.dtype.itemsize, 4), first[b], last[b]) for b, t in fresh if b in first and b not in keep
    ]
    return lives, apart


def _placer(module: Module, placement: Placement, outputs: dict[Any, int]) -> Any:
    memo: dict[int, Tensor] = {}

    def place(t: Tensor) -> Tensor:
        if not is_fresh(t.buffer):
            return t
        if id(t) in memo:
            return memo[id(t)]
        if t.buffer in outputs:
            ref, start = REF_OUTPUT + outputs[t.buffer], 0
        else:
            arena, at = placement.offsets[t.buffer]
            ref, start = REF_TEMP + arena, at // t.dtype.itemsize
        memo[id(t)] = placed = Tensor(ref, t.buffer, t.dtype, t.sizes, t.strides, t.delta + start, t.offset + start)
        return placed

    return place


def _results(module: Module, bases: dict[Any, int]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """The native core's outputs: fresh tensors first, then inputs and views; and which of them the call returns."""
    outputs: list[tuple[Any, ...]] = []
    for buffer in bases:
        t = module.created[-1 - buffer]
        outputs.append((-1, t.dtype.code, t.sizes, t.strides))
    returned = []
    for t in module.outputs:
        if not isinstance(t, Tensor):
            if isinstance(t, Scalar):
                raise NotImplementedError("a CPU scalar is returned")
            returned.append(-1)
            continue
        base = module.created[-1 - t.buffer] if t.buffer in bases else None
        if base is not None and base.sizes == t.sizes and base.strides == t.strides and not t.delta:
            returned.append(bases[t.buffer])
            continue
        ref = REF_OUTPUT + bases[t.buffer] if base is not None else t.ref
        returned.append(len(outputs))
        outputs.append((ref, t.dtype.code, t.sizes, t.strides, t.delta))
    return outputs, returned


def assemble(module: Module, origins: Origins | None = None) -> Plan:
    """Plans memory and resolves every launch; compiles the pipelines that are new."""
    bases: dict[Any, int] = {}
    for t in module.outputs:
        if isinstance(t, Tensor) and is_fresh(t.buffer):
            bases.setdefault(t.buffer, len(bases))
    lives, apart = _lifetimes(module, set(bases))
    limit = min(target().limits["maxStorageBufferBindingSize"], LARGEST_ARENA)
    placement = plan(lives, apart, limit)
    place = _placer(module, placement, bases)
    graph = _Resolved()
    graph.created = [place(t) if t.buffer in bases or t.buffer in placement.offsets else t for t in module.created]
    for step in module.steps:
        graph.op = step.name
        if origins is not None:
            graph.modules = origins.of(step)
        placed: Step = step.map_tensors(place)
        placed.launch(graph)
    outputs, returned = _results(module, bases)
    recipe = (outputs, list(placement.arenas), graph.steps, module.may_fail, module.specialised, returned)
    total = sum(life.size for life in lives)
    return Plan(recipe, graph.dispatches, placement.arenas, len(bases), module.notes, total, peak(lives))
