"""Rewrites of Dynamo's graph before AOTAutograd, where functionalisation would change what the program means."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_DROPOUTS = {
    torch.nn.functional.dropout,
    torch.nn.functional.dropout1d,
    torch.nn.functional.dropout2d,
    torch.nn.functional.dropout3d,
    torch.nn.functional.alpha_dropout,
    torch.nn.functional.feature_alpha_dropout,
}


def prepare(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph with these rewrites.

    - Dropout outside training returns its input itself, so an in-place op on the result writes the input: the call goes.
    - ``unfold`` becomes ``as_strided``: functionalisation of a write through an ``unfold`` view clears what lies in its gaps.
    """
    graph = fx.Graph()
    result = graph.graph_copy(module.graph, names := {})
    graph.output(result)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _DROPOUTS and _inactive(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.op == "call_method" and node.target == "unfold":
            _as_strided(graph, node)
    del names
    return fx.GraphModule(module, graph)


def _inactive(node: fx.Node) -> bool:
    training = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
    return training is False and isinstance(node.args[0], fx.Node)


def _as_strided(graph: fx.Graph, node: fx.Node) -> None:
    value = node.meta.get("example_value")
    writes = any(str(u.target).endswith("_") and not str(u.target).endswith("__") for u in node.users if u.op == "call_method")
    writes = writes or any(u.target in _WRITING for u in node.users)
    if value is None or not writes or any(not isinstance(n, int) for n in (*value.shape, *value.stride())):
        return
    with graph.inserting_before(node):
        new = graph.call_function(
            torch.as_strided, (node.args[0], tuple(value.shape), tuple(value.stride()), value.storage_offset())
        )
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


_WRITING = {
    operator.setitem,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
    operator.iand,
    operator.ior,
    operator.ixor,
    operator.ilshift,
    operator.irshift,
    operator.imatmul,
}


def may_mutate(module: fx.GraphModule) -> bool:
    """Whether the graph may write its inputs."""
    for node in module.graph.nodes:
        if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
            return True
        if node.target in _WRITING or "out" in node.kwargs:
            return True
        if node.op == "call_function" and getattr(node.target, "__name__", "").endswith("_"):
            return True
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return True
        if node.kwargs.get("inplace") is True or node.op == "call_module":
            return True
        if node.op == "call_function" and "batch_norm" in getattr(node.target, "__name__", ""):
            return True
    return False


def alias_pattern(args: Sequence[Any]) -> frozenset[tuple[int, int, int]]:
    """Pairs of inputs, parameters aside, that share storage: (first, second, bytes between them)."""
    seen: dict[int, tuple[int, int]] = {}
    pairs = []
    for i, x in enumerate(args):
        if not isinstance(x, torch.Tensor) or isinstance(x, torch.nn.Parameter):
            continue
        storage = x.untyped_storage()._cdata
        start = x.storage_offset() * x.element_size()
        if storage in seen:
            pairs.append((seen[storage][0], i, int(start - seen[storage][1])))
        else:
            seen[storage] = (i, start)
    return frozenset(pairs)
