"""Rewrites of Dynamo's graph before AOTAutograd, where functionalisation would change what the program means."""

from __future__ import annotations

import itertools
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


class NotTraceableError(Exception):
    """A program whose meaning functionalisation would change; it runs eagerly."""


def prepare(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph with these rewrites.

    - Dropout outside training returns its input itself, so an in-place op on the result writes the input: the call goes.
    - ``unfold`` that is written through becomes views of blocks: functionalisation would clear what lies in its gaps.

    Raises:
        NotTraceableError: where no such views exist.
    """
    graph = fx.Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _DROPOUTS and _inactive(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif (node.target in ("unfold", torch.Tensor.unfold)) and _is_written(node):
            _in_blocks(graph, node)
    return fx.GraphModule(module, graph)


def _inactive(node: fx.Node) -> bool:
    training = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
    return training is False and isinstance(node.args[0], fx.Node)


def _in_blocks(graph: fx.Graph, node: fx.Node) -> None:
    """``unfold`` as views that functionalisation knows how to write through: the dimension is cut into blocks of a step."""
    dim, size, step = _unfolding(node)
    source = node.args[0]
    ndim, length = source.meta["example_value"].dim(), source.meta["example_value"].shape[dim]  # type: ignore[union-attr]
    count = (length - size) // step + 1
    if count * step > length:
        raise NotTraceableError("a write through unfold, whose last window ends at the last elements")
    with graph.inserting_before(node):
        part = graph.call_method("narrow", (source, dim, 0, count * step))
        blocks = graph.call_method("unflatten", (part, dim, (count, step)))
        windows = graph.call_method("narrow", (blocks, dim + 1, 0, size))
        new = graph.call_method("movedim", (windows, dim + 1, ndim))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _unfolding(node: fx.Node) -> tuple[int, int, int]:
    """Dimension, size and step of an ``unfold``."""
    names = ("dimension", "size", "step")
    dim, size, step = (node.args[i + 1] if len(node.args) > i + 1 else node.kwargs[n] for i, n in enumerate(names))
    source = node.args[0].meta["example_value"]  # type: ignore[union-attr]
    if source.dim() == 0 or any(not isinstance(n, int) for n in (dim, size, step, source.shape[dim])):
        raise NotTraceableError("a write through unfold of a size that changes")
    return dim % source.dim(), size, step  # type: ignore[operator, return-value]


def _is_written(view: fx.Node) -> bool:
    """Whether a view, or a view of it, is written."""
    memory = _storage(view)
    seen, waiting = {view}, [view]
    while waiting:
        for user in waiting.pop().users:
            if writes(user):
                return True
            if user not in seen and (memory is None or _storage(user) in (memory, None)):
                seen.add(user)
                waiting.append(user)
    return False


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


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
    return any(writes(node) for node in module.graph.nodes)


def writes(node: fx.Node) -> bool:
    """Whether a node may write an argument."""
    if node.op == "call_module" or "out" in node.kwargs or node.target in _WRITING or node.kwargs.get("inplace") is True:
        return True
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = getattr(node.target, "__name__", "")
    if any(a is True for a in node.args) and name in _WITH_INPLACE:
        return True
    return (name.endswith("_") and not name.endswith("__")) or "batch_norm" in name


# Functions of torch.nn.functional whose last argument by position is ``inplace``.
_WITH_INPLACE = {
    *("relu", "relu6", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid"),
    *("threshold", "rrelu", *(f.__name__ for f in _DROPOUTS)),
}


def takes_storage_offsets(module: fx.GraphModule) -> bool:
    """Whether the graph counts from a storage's start (``as_strided``): functionalisation forgets where inputs start."""
    return any(
        "as_strided" in str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
        for node in module.graph.nodes
        if node.op in ("call_function", "call_method")
    )


AliasPattern = frozenset[tuple[int, int, int]]


def alias_pattern(args: Sequence[Any]) -> AliasPattern:
    """Pairs of inputs, parameters aside, that share storage: (first, second, bytes between them)."""
    seen: dict[int, tuple[int, int]] = {}
    pairs = []
    for i, x in enumerate(args):
        if not isinstance(x, torch.Tensor) or isinstance(x, torch.nn.Parameter):
            continue
        storage = x.untyped_storage()._cdata
        start = int(x.storage_offset()) * x.element_size()
        if storage in seen:
            pairs.append((seen[storage][0], i, start - seen[storage][1]))
        else:
            seen[storage] = (i, start)
    return frozenset(pairs)


def overlap(args: Sequence[Any]) -> bool:
    """Whether two inputs reach into each other's memory."""
    spans = sorted(_span(x) for x in args if isinstance(x, torch.Tensor) and x.numel())
    return any(a[0] == b[0] and b[1] < a[2] for a, b in itertools.pairwise(spans))


def _span(x: torch.Tensor) -> tuple[int, int, int]:
    """A tensor's storage, and its first byte and the one after its last."""
    start = x.storage_offset() * x.element_size()
    extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.untyped_storage()._cdata, int(start), int(start + extent * x.element_size())
