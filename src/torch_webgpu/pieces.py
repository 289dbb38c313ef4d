"""Ops on tensors beyond the largest storage binding: the lowering runs on slices along an independent dimension.

A lowering is written for whole tensors. Where one of its launches would touch more of a buffer than a binding may cover,
what it recorded is taken back and it runs once a slice, into temporaries that are copied to the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import LimitError
from .kernels.pointwise import contiguous, copy_into, emit
from .recipe import Graph, Tensor, spans
from .runtime import target

ADDED = -1  # in place of a result's dimension: the slices' results are partial sums


@dataclass(frozen=True)
class Cut:
    """A way to run an op by slices.

    Attributes:
        arguments: dimension of each argument that is cut, by the argument's position.
        results: dimension of each result that the slices lie along, or ``ADDED``.
        counts: positions of integer arguments that hold the length of the dimension.
    """

    arguments: Mapping[int, int]
    results: Sequence[int]
    counts: Sequence[int] = ()

    def length(self, args: Sequence[Any]) -> int:
        """Slices of one that the dimension has."""
        return min(args[i].sizes[d] for i, d in self.arguments.items())


Cuts = Callable[[Sequence[Any], int], Sequence[Cut]]  # of the arguments and the number of results


def margin() -> int:
    """Bytes of one tensor that a binding covers wherever the tensor starts (bindings start at multiples of 256)."""
    return target().limits["maxStorageBufferBindingSize"] - 256


def exceeds(graph: Graph, first: int = 0) -> bool:
    """Whether a launch from step ``first`` on touches more of a tensor than a binding covers."""
    return max([o[3] * o[4] for step in graph.steps[first:] for o in step[1]], default=0) > margin()


def _slice(graph: Graph, t: Any, dim: int, start: int, length: int) -> Any:
    part = t.narrow(dim, start, length)
    return contiguous(graph, part) if part.extent * t.dtype.itemsize > margin() else part


def _deliver(graph: Graph, made: Tensor, out: Tensor, dim: int, start: int) -> None:
    if out.numel == 0:
        return
    if dim != ADDED:
        copy_into(graph, made, out.narrow(dim, start, made.sizes[dim]))
    elif start == 0:
        copy_into(graph, made, out)
    else:
        form, cls = ("add64({0}, {1})" if out.dtype.cls == "l" else "({0} + {1})"), out.dtype.cls
        emit(graph, form, [out, made], [cls, cls], cls, out, "add")


def in_pieces(
    graph: Graph, lowering: Callable[..., Any], args: Sequence[Any], like: Sequence[Tensor], cuts: Sequence[Cut]
) -> list[Tensor]:
    """Records ``lowering`` slice by slice.

    Args:
        like: what the results are to look like.
        cuts: the first one is made; the others are for slices of one that are still too large.

    Raises:
        LimitError: the smallest slice still exceeds the binding.
    """
    cut, rest = cuts[0], cuts[1:]
    size = cut.length(args)
    outs = [graph.new(t.sizes, t.dtype, t.strides) for t in like]
    state = len(graph.created), len(graph.steps)
    length = -(-size // 2)
    while not _try(graph, lowering, args, outs, cut, size, length):
        del graph.created[state[0] :], graph.steps[state[1] :]
        if length == 1 and rest:
            inner = lambda graph, *given: _cut_further(graph, lowering, given, rest)  # noqa: E731
            if _try(graph, inner, args, outs, cut, size, 1):
                break
        if length == 1:
            raise LimitError(
                f"{graph.op}: one slice of {args[next(iter(cut.arguments))]} along dimension "
                f"{next(iter(cut.arguments.values()))} exceeds what a storage binding may cover ({margin() + 256} bytes); "
                "split the tensor along another dimension"
            )
        length = -(-length // 2)
    return outs


def _cut_further(graph: Graph, lowering: Callable[..., Any], args: Sequence[Any], cuts: Sequence[Cut]) -> Any:
    state = len(graph.created), len(graph.steps)
    made = lowering(graph, *args)
    if not exceeds(graph, state[1]):
        return made
    del graph.created[state[0] :], graph.steps[state[1] :]
    return in_pieces(graph, lowering, args, list(made) if isinstance(made, (list, tuple)) else [made], cuts)


def _try(
    graph: Graph, lowering: Callable[..., Any], args: Sequence[Any], outs: Sequence[Tensor], cut: Cut, size: int, length: int
) -> bool:
    """Records all slices of ``length``; False as soon as one of them is too large."""
    for start, n in spans(size, length):
        given = list(args)
        for i, dim in cut.arguments.items():
            given[i] = _slice(graph, args[i], dim, start, n)
        for i in cut.counts:
            given[i] = n
        mark = len(graph.steps)
        try:
            made = lowering(graph, *given)
        except LimitError:
            return False
        if exceeds(graph, mark):
            return False
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        for t, out, dim in zip(made, outs, cut.results, strict=True):
            _deliver(graph, t, out, dim, start)
    return True
