"""Passes on the FX graph: each takes a graph and returns a graph that computes the same."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from .aliasing import keep_apart, memory_of, result_memory
from .attention_patterns import attentions, decode_attentions, rotary_embeddings
from .conv import padded_convolutions
from .layer_patterns import linears, rms_norms
from .matching import is_op, simplify


def rewrite(module: fx.GraphModule, level: str, free: Collection[int] = ()) -> fx.GraphModule:
    """All passes of a fusion level (``TORCH_WEBGPU_FUSION``).

    Args:
        free: positions of results that may share memory with others (``aliasing.keep_apart``).
    """
    before = result_memory(module.graph)
    module = update_in_place(module)
    if level != "none":
        module = eliminate_common(simplify(module))
    module = keep_apart(module, before, free)
    if level == "full":
        for recognise in (rms_norms, linears, padded_convolutions, rotary_embeddings, attentions, decode_attentions):
            module = recognise(module)
        module.graph.eliminate_dead_code()
    return module


def eliminate_common(module: fx.GraphModule) -> fx.GraphModule:
    """Common subexpressions once. Nodes that write or draw random numbers stay as they are."""
    graph = module.graph
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        op = node.target
        if node.op != "call_function" or not _pure(op):
            continue
        try:
            key = (op, _hashable(node.args), _hashable(node.kwargs))
            first = seen.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return module


def _pure(op: Any) -> bool:
    if not isinstance(op, torch._ops.OpOverload):
        return op.__module__ in ("_operator", "math") if hasattr(op, "__module__") else False
    return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, dict):
        return tuple(sorted((k, _hashable(v)) for k, v in value.items()))
    if isinstance(value, slice):
        return (value.start, value.stop, value.step)
    hash(value)
    return (type(value), value)


_IN_PLACE = {
    torch.ops.aten.index_copy.default: torch.ops.aten.index_copy_.default,
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
}


def update_in_place(module: fx.GraphModule) -> fx.GraphModule:
    """``x1 = index_copy(x, …)`` … ``copy_(x, x1)`` becomes ``index_copy_(x, …)`` where nothing reads the old ``x`` later.

    Functionalisation makes the first of the second; a KV cache would be copied at every step.
    """
    graph = module.graph
    order = {n: i for i, n in enumerate(graph.nodes)}
    for copy in [n for n in graph.nodes if is_op(n, torch.ops.aten.copy_.default)]:
        target, update = copy.args
        if not is_op(update, *_IN_PLACE) or update.args[0] is not target or target.op != "placeholder":
            continue
        if any(order[u] > order[update] for u in _uses_of_memory(target) if u not in (update, copy)):
            continue
        if any(memory_of(n) is target for n in update.all_input_nodes if n is not target):
            continue  # it reads what it would write
        update.target = _IN_PLACE[update.target]
        copy.replace_all_uses_with(update)
        graph.erase_node(copy)
    return module


def _uses_of_memory(node: fx.Node) -> set[fx.Node]:
    """Nodes that read a tensor, also through views of it."""
    found: set[fx.Node] = set()
    for user in node.users:
        found.add(user)
        if isinstance(user.target, torch._ops.OpOverload) and user.target.is_view:
            found |= _uses_of_memory(user)
    return found
