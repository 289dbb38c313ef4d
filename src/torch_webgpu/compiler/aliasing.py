"""Which nodes of an FX graph share memory, and results kept apart that a pass has made one."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx


def memory_of(node: fx.Node) -> fx.Node:
    """The node that made the memory a node's tensor lies in, looked up through views and in-place ops."""
    while node.op == "call_function" and node.args:
        op = node.target
        source = node.args[0]
        if op is operator.getitem:
            if not (isinstance(source, fx.Node) and getattr(source.target, "is_view", False)):
                return node
        elif not isinstance(op, torch._ops.OpOverload) or not (op.is_view or _returns_first(op)):
            return node
        if not isinstance(source, fx.Node):
            return node
        node = source
    return node


def _returns_first(op: torch._ops.OpOverload) -> bool:
    """Whether an op writes its first argument and returns it."""
    first, returns = op._schema.arguments[0].alias_info, op._schema.returns
    if first is None or not first.is_write or not returns or returns[0].alias_info is None:
        return False
    return bool(first.before_set & returns[0].alias_info.before_set)


def written(graph: fx.Graph) -> set[fx.Node]:
    """Memory that some node of the graph writes."""
    found = set()
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
                found.add(memory_of(value))
    return found


def result_memory(graph: fx.Graph) -> list[fx.Node | None]:
    """For each result, whose memory it lies in."""
    results: Any = graph.output_node().args[0]
    return [memory_of(r) if isinstance(r, fx.Node) else None for r in results]


def keep_apart(module: fx.GraphModule, before: list[fx.Node | None], free: Collection[int]) -> fx.GraphModule:
    """Copies results that share memory with an input or another result and did not before the passes.

    Args:
        before: ``result_memory`` as it was then.
        free: positions of results that AOTAutograd makes anew from the inputs; only their metadata matters.
    """
    graph = module.graph
    output = graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    owner: dict[fx.Node, fx.Node | None] = {}
    for i, (old, new) in enumerate(zip(before, result_memory(graph), strict=True)):
        if new is None or i in free:
            continue
        shared = old is not new if new.op == "placeholder" else owner.setdefault(new, old) is not old
        if not shared:
            continue
        source = results[i]
        after = source if source.op != "placeholder" else [n for n in graph.nodes if n.op == "placeholder"][-1]
        with graph.inserting_after(after):
            results[i] = graph.call_function(torch.ops.aten.clone.default, (source,))
        results[i].meta = dict(source.meta)
    output.args = (tuple(results),)
    return module
