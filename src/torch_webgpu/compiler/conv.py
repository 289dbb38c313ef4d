"""Convolutions as structured steps: their kernel does the arithmetic on its results, and makes up zeros around its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..kernels.program import IDENTITY, Program
from ..ops.conv import Epilogue, Window, correlate, geometry, in_planes
from ..ops.gather import five
from ..recipe import Graph, Tensor
from .fusion import binding_count, most_bindings
from .ir import DeferredGraph
from .linear import bake, constants_alone
from .lower import Fused
from .matching import argument, aten, constant_value, is_op, replace_with
from .structural import structural

MOST_EXTRAS = 16  # each takes two uniform words


@dataclass
class Conv:
    """``out = program(convolution(x, weight) + bias, *extras)``, all but ``bias`` five-dimensional.

    Attributes:
        extras: tensors of ``out``'s sizes, as ``ops.conv.Epilogue`` takes them, and numbers.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    out: Tensor
    window: Window
    groups: int
    program: Program
    extras: list[Any]
    name: str

    streams = 1

    def possible(self) -> bool:
        """Whether the kernel takes it as it is."""
        tensors = [e for e in self.extras if isinstance(e, Tensor)]
        own = {self.out.buffer}.isdisjoint(t.buffer for t in self.reads())
        whole = self.out.contiguous and not self.out.delta
        few = len(tensors) <= MOST_EXTRAS and binding_count([*self.reads(), self.out]) <= most_bindings()
        return own and whole and few and constants_alone(self.extras) and all(in_planes(t) is not None for t in tensors)

    def reads(self) -> list[Tensor]:
        tensors = [self.x, self.weight, *(e for e in self.extras if isinstance(e, Tensor))]
        return tensors if self.bias is None else [*tensors, self.bias]

    def writes(self) -> list[Tensor]:
        return [self.out]

    def map_tensors(self, place: Callable[[Tensor], Tensor]) -> Conv:
        return replace(
            self,
            x=place(self.x),
            weight=place(self.weight),
            bias=None if self.bias is None else place(self.bias),
            out=place(self.out),
            extras=[place(e) if isinstance(e, Tensor) else e for e in self.extras],
        )

    def launch(self, graph: Graph) -> None:
        program, extras = bake(self.program, [None, *self.extras])
        epilogue = Epilogue(program, tuple(extras[1:]))
        correlate(graph, self.x, self.weight, self.bias, self.out, self.window, self.groups, epilogue)


@structural("convolution")
def _convolution(graph: Any, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
    x, weight, bias, *rest = args
    return _collect(graph, x, weight, bias, *geometry(graph, x, weight, bias, *rest), rest[-1])


def _collect(
    graph: DeferredGraph, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, sizes: list[int], groups: int
) -> Tensor:
    rank = x.ndim - 2
    out = graph.new(sizes, x.dtype)
    operands = five(x, rank), five(weight, rank), bias, five(out, rank)
    graph.collected.append(Conv(*operands, window, groups, IDENTITY, [], "convolution"))
    return out


# ---------------------------------------------------------------------------------------------------- padding


def lower_padded(
    graph: DeferredGraph, x: Tensor, weight: Tensor, bias: Tensor | None, pads: Any, stride: Any, dilation: Any, groups: int
) -> Tensor:
    """A convolution of ``x`` with ``pads`` zeros around it: (before, after) for each spatial dimension, the last first."""
    rank = x.ndim - 2
    before, after = list(pads[::2])[::-1], list(pads[1::2])[::-1]
    graph.op = "convolution"
    window, sizes = geometry(graph, x, weight, bias, stride, before, dilation, False, [0] * rank, groups)
    for i in range(rank):
        reach = window.dilation[3 - rank + i] * (weight.sizes[2 + i] - 1) + 1
        sizes[2 + i] = (x.sizes[2 + i] + before[i] + after[i] - reach) // window.stride[3 - rank + i] + 1
    return _collect(graph, x, weight, bias, window, sizes, groups)


def _eager_padded(x: Any, weight: Any, bias: Any, pads: Any, stride: Any, dilation: Any, groups: int) -> Any:
    x = torch.nn.functional.pad(x, pads)
    rank = x.dim() - 2
    return aten.convolution.default(x, weight, bias, stride, [0] * rank, dilation, False, [0] * rank, groups)


PADDED = Fused("padded_convolution", lower_padded, _eager_padded)


def padded_convolutions(module: fx.GraphModule) -> fx.GraphModule:
    """Convolutions of an input that ``constant_pad_nd`` surrounds with zeros take the input as it is."""
    for node in list(module.graph.nodes):
        if not is_op(node, aten.convolution.default):
            continue
        x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        if transposed or not is_op(x, aten.constant_pad_nd.default) or constant_value(argument(x, 2, "value", 0)) != 0.0:
            continue
        rank, pads = len(padding), list(x.args[1])
        if len(pads) > 2 * rank or any(not isinstance(p, int) or p < 0 for p in pads):
            continue
        pads += [0] * (2 * rank - len(pads))
        pads = [p + padding[rank - 1 - i // 2] for i, p in enumerate(pads)]
        replace_with(node, PADDED, (x.args[0], weight, bias, pads, list(stride), list(dilation), groups))
    module.graph.eliminate_dead_code()
    return module
