"""From an FX graph of ATen ops to steps: every node goes through the lowering that eager uses, over tensor metadata."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .. import _C, wgsl
from ..errors import WebGPUError
from ..kernels.pointwise import copy_into
from ..recipe import Scalar, Tensor
from ..registry import apply, entry_of
from .ir import DeferredGraph, Module
from .origins import module_path
from .structural import handler_of, key_of

_PRIVATEUSE1 = 20  # c10::DeviceType::PrivateUse1


class UnsupportedNodeError(Exception):
    """A node that cannot be part of a plan."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        super().__init__(f"{node.target}: {reason}")
        self.node, self.reason = node, reason


def inputs_of(graph: DeferredGraph, metas: Sequence[Any]) -> list[Any]:
    """Plan inputs from what the native core tells of a call's arguments (``_C.Meta`` or numbers)."""
    values: list[Any] = []
    for i, meta in enumerate(metas):
        if isinstance(meta, float):
            values.append(Scalar(graph, i, False, meta, wgsl.F32, True))
        elif not isinstance(meta, _C.Meta):
            values.append(meta)  # an integer, or a tensor of the device
        elif meta.value is not None and meta.device != _PRIVATEUSE1:
            values.append(Scalar(graph, meta.ref, True, meta.value, wgsl.DTYPES.get(meta.dtype, wgsl.F32), meta.wrapped))
        else:
            values.append(None)  # no operand of a plan: fine unless a node uses it
    return values


def lower(module: fx.GraphModule, metas: Sequence[Any]) -> Module:
    """Lowers a graph for concrete inputs.

    Raises:
        UnsupportedNodeError: naming the first node without a lowering.
    """
    graph = DeferredGraph()
    inputs = iter(inputs_of(graph, metas))
    env: dict[fx.Node, Any] = {}
    outputs: list[Any] = []
    paths: list[str] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(inputs)
        elif node.op == "get_attr":
            raise UnsupportedNodeError(node, "a constant that was not lifted to an input")
        elif node.op == "output":
            outputs = list(fx.node.map_arg(node.args[0], lambda n: env[n]))
        else:
            env[node] = _lower_node(graph, node, env)
        paths += [module_path(node)] * (len(graph.collected) - len(paths))
    return Module(graph.collected, outputs, graph.created, graph.may_fail, graph.specialised, paths=paths)


def _lower_node(graph: DeferredGraph, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    args: list[Any] = list(fx.node.map_arg(node.args, lambda n: env[n]))
    kwargs: dict[str, Any] = dict(fx.node.map_arg(node.kwargs, lambda n: env[n]))
    target = node.target
    if target is operator.getitem:
        return args[0][args[1]]
    if isinstance(target, Fused):
        graph.op = target.name
        graph.target = None
        return target.lowering(graph, *args, **kwargs)
    if not isinstance(target, torch._ops.OpOverload):
        return _on_numbers(node, args, kwargs)
    if key_of(target).startswith("sym_"):
        return _measure_of(node, args)
    graph.op = key_of(target)
    graph.target = None
    if graph.op in ("as_strided", "as_strided_scatter"):
        args[0] = _laid_out(graph, args[0], node.args[0])
    try:
        result = _lower_op(graph, target, args, kwargs)
    except (WebGPUError, NotImplementedError, AssertionError, TypeError, AttributeError, KeyError) as e:
        raise UnsupportedNodeError(node, f"{type(e).__name__}: {e}") from e
    if result is NotImplemented or (isinstance(result, str)):
        raise UnsupportedNodeError(node, "no lowering for these arguments" if result is NotImplemented else "needs the host")
    return result


def _measure_of(node: fx.Node, args: list[Any]) -> Any:
    """``sym_size``, ``sym_stride``, ``sym_numel``: what a graph for several sizes asks of a tensor."""
    kind = key_of(node.target).partition(".")[0]
    if kind == "sym_numel":
        return args[0].numel
    if kind not in ("sym_size", "sym_stride"):
        raise UnsupportedNodeError(node, "not known of a tensor in a plan")
    measures = args[0].sizes if kind == "sym_size" else args[0].strides
    return measures[args[1]] if len(args) > 1 else list(measures)


def _laid_out(graph: DeferredGraph, x: Tensor, node: Any) -> Tensor:
    """A tensor with the strides that it had at tracing, which an op that takes strides counts on."""
    strides = node.meta["val"].stride()
    if any(not isinstance(s, int) for s in strides) or all(
        a == b for a, b, n in zip(x.strides, strides, x.sizes, strict=True) if n > 1
    ):
        return x
    copy = graph.new(x.sizes, x.dtype, strides)
    copy_into(graph, x, copy)
    return copy


def _on_numbers(node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not callable(node.target) or any(isinstance(a, Tensor) for a in tree_leaves((args, kwargs))):
        raise UnsupportedNodeError(node, "not an ATen op")
    return node.target(*(a.value if isinstance(a, Scalar) else a for a in args), **kwargs)


def _lower_op(graph: DeferredGraph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    handler = handler_of(op)
    if handler is not None:
        return handler(graph, op, args, kwargs)
    entry = entry_of(graph.op)
    if entry is None:
        return NotImplemented
    results = apply(graph, entry, [_argument(graph, a) for a in _positional(op, args, kwargs)])
    if results is NotImplemented or isinstance(results, str):
        return results
    returns = op._schema.returns
    return results[0] if len(returns) == 1 and not str(returns[0].type).endswith("[]") else results


def _positional(op: Any, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments in the schema's order, defaults filled in: what the native core hands to eager."""
    values = list(args)
    for argument in op._schema.arguments[len(args) :]:
        if argument.name in kwargs:
            values.append(kwargs[argument.name])
        else:
            values.append(argument.default_value if argument.has_default_value() else None)
    return values


_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def _argument(graph: DeferredGraph, value: Any) -> Any:
    if isinstance(value, float):
        return Scalar(graph, -1, False, value, wgsl.F32, True)
    if isinstance(value, torch.dtype):
        return wgsl.scalar_type(value)
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.memory_format):
        return _MEMORY_FORMATS[value]
    if isinstance(value, torch.layout):
        return 0
    if isinstance(value, (list, tuple)):
        return [_argument(graph, v) for v in value]
    return value


class Fused:
    """Target of an FX node that a pass made: a named lowering over tensor metadata.

    Attributes:
        lowering: (graph, *args) → result, as in the registry.
        eager: the same on tensors, for graphs that run op by op.
    """

    def __init__(self, name: str, lowering: Callable[..., Any], eager: Callable[..., Any]) -> None:
        self.name, self.lowering, self.eager = name, lowering, eager
        self.__name__ = name

    def __call__(self, *args: Any) -> Any:
        return self.eager(*args)

    def __repr__(self) -> str:
        return f"fused.{self.name}"
