"""What the pattern passes share: looking at FX nodes, and replacing them."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import fx

from .aliasing import memory_of, written

aten = torch.ops.aten


def is_op(value: Any, *ops: Any) -> bool:
    """Whether a value is a node that calls one of the overloads."""
    return isinstance(value, fx.Node) and value.op == "call_function" and value.target in ops


def is_number(value: Any) -> bool:
    """Whether a value is a floating-point number, known or not (Dynamo keeps the latter in 0-dim CPU tensors)."""
    if not isinstance(value, fx.Node):
        return isinstance(value, float)
    found = value.meta.get("val")
    if isinstance(found, torch.Tensor):
        return found.dim() == 0 and found.device.type == "cpu" and found.dtype.is_floating_point
    return isinstance(found, (float, torch.SymFloat))


def is_tensor(value: Any) -> TypeGuard[fx.Node]:
    """Whether an argument is a tensor: nodes may be numbers too, which are known at the call alone."""
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def shape(node: fx.Node) -> tuple[Any, ...]:
    """Sizes as traced; symbolic ones as expressions, whose comparison adds no guard."""
    return tuple(_plain(n) for n in node.meta["val"].shape)


def _plain(size: Any) -> Any:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression) if expression.is_Integer else expression


def dtype(node: fx.Node) -> torch.dtype:
    """Dtype as traced."""
    found: torch.dtype = node.meta["val"].dtype
    return found


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument given by position or by name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def single_user(node: fx.Node) -> fx.Node | None:
    """The only node that uses it, if there is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def replace_with(node: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    """Puts a call in the place of a node."""
    graph = node.graph
    with graph.inserting_before(node):
        new = graph.call_function(target, args)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return new


def constant_value(node: Any) -> float | None:
    """The number that every element of a node has, where that is plain to see."""
    if isinstance(node, (int, float)):
        return float(node)
    if is_op(node, aten.scalar_tensor.default):
        return float(node.args[0]) if isinstance(node.args[0], (int, float)) else None
    if is_op(node, aten.full.default, aten.full_like.default):
        return float(node.args[1]) if isinstance(node.args[1], (int, float)) else None
    if is_op(node, aten.zeros.default, aten.zeros_like.default):
        return 0.0
    if is_op(node, aten.arange.default) and node.args[0] == 1:
        return 0.0
    return None


def simplify(module: fx.GraphModule) -> fx.GraphModule:
    """Without additions of zero, products with one, slices of everything, and copies made only to be copied."""
    graph = module.graph
    changing = written(graph)
    for node in list(graph.nodes):
        if is_op(node, aten.slice.Tensor) and shape(node) == shape(node.args[0]) and argument(node, 4, "step", 1) == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            continue
        if is_op(node, aten.add.Tensor) and not node.kwargs:
            _drop_operand(node, 0.0, changing)
        elif is_op(node, aten.mul.Tensor):
            _drop_operand(node, 1.0, changing)
        elif is_op(node, aten.copy.default):
            _drop_copy(node, changing)
    graph.eliminate_dead_code()
    return module


def _drop_copy(node: fx.Node, changing: set[fx.Node]) -> None:
    """``copy_(x, copy(y, source))`` reads the source itself."""
    source = node.args[1]
    if not isinstance(source, fx.Node) or shape(source) != shape(node) or dtype(source) != dtype(node):
        return
    if memory_of(source) in changing:
        return  # it may be written before it is read
    if all(is_op(user, aten.copy_.default) and user.args[0] is not node for user in node.users):
        node.replace_all_uses_with(source)
        node.graph.erase_node(node)


def _drop_operand(node: fx.Node, neutral: float, changing: set[fx.Node]) -> None:
    for kept, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
        if not is_tensor(kept) or constant_value(other) != neutral:
            continue
        if neutral == 0.0 and dtype(kept).is_floating_point:
            continue  # -0.0 + 0.0 is 0.0
        if dtype(kept) != dtype(node) or memory_of(kept) in changing:
            continue  # the node holds what is there before a write
        if shape(kept) == shape(node):
            node.replace_all_uses_with(kept)
            node.graph.erase_node(node)
            return
        if all(isinstance(n, int) for n in shape(node)) and shape(node) == (1,) and shape(kept) == ():
            replace_with(node, aten.view.default, (kept, [1]))
            return
