"""Weights of linear layers over the same input are laid out one after the other, so that one launch can read them all.

The parameters become views of one buffer. The old buffers go back to the system group by group: nothing else has their
size, so the allocator would keep them for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

ALIGNMENT = 16  # bytes; kernels read four words at once


#: Groups of layers; a layer as the positions of its weight, bias and scales among a graph's inputs.
Siblings = list[list[list[int]]]


def find(module: fx.GraphModule) -> Siblings:
    """Sibling layers in Dynamo's graph, by those of their tensors that are inputs of it."""
    place = {n: i for i, n in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
    groups: dict[tuple[Any, ...], list[list[int]]] = defaultdict(list)
    for node in module.graph.nodes:
        parts = _parts(node)
        if parts is None:
            continue
        found = [place.get(p) if isinstance(p, fx.Node) else None for p in parts[1:]]
        present = tuple(i is not None for i in found)
        groups[(node.target, parts[0], present)].append([i for i in found if i is not None])
    return [group for group in groups.values() if len(group) > 1 and group[0]]


def pack(groups: Siblings, inputs: Sequence[Any]) -> int:
    """Lays the weights, biases and scales of each group out.

    Args:
        inputs: the graph's inputs; only real tensors on the device that own their storage alone are moved.

    Returns:
        The number of groups that were packed.
    """
    return sum(_pack_group([[inputs[i] for i in layer] for layer in group]) for group in groups)


def lay_out_siblings(module: fx.GraphModule, inputs: Sequence[Any]) -> int:
    """``pack`` of what ``find`` finds."""
    return pack(find(module), inputs)


def _parts(node: fx.Node) -> list[Any] | None:
    """Input, weight and what else has a row for each of the weight's."""
    if node.op != "call_function":
        return None
    if node.target is torch._C._nn.linear or node.target is torch.nn.functional.linear:
        bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        return [*node.args[:2], bias]
    name = getattr(node.target, "__name__", "")
    namespace = getattr(node.target, "namespace", None) or getattr(node.target, "_qualified_op_name", "").partition("::")[0]
    if namespace == "webgpu" and name.startswith("linear_int"):
        return list(node.args)
    return None


def _pack_group(group: list[list[Any]]) -> bool:
    columns = list(zip(*group, strict=True))
    if not columns or not all(_movable(column) for column in columns):
        return False
    if all(_adjacent(column) for column in columns):
        return False
    with torch.no_grad():
        for column in columns:
            _pack(column)
    torch.get_device_module("webgpu").empty_cache()
    return True


def _movable(column: Sequence[Any]) -> bool:
    first = column[0]
    if not isinstance(first, torch.Tensor) or len({id(t) for t in column}) < len(column):
        return False
    for t in column:
        if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.device.type != "webgpu" or t.dtype != first.dtype:
            return False
        if t.shape[1:] != first.shape[1:] or not t.is_contiguous() or t.nbytes % ALIGNMENT or not t.is_leaf:
            return False
        if t.untyped_storage().nbytes() > t.nbytes and not _adjacent(column):
            return False  # others may hold views of its storage
        if _owners(t) > 1 and not _adjacent(column):
            return False  # another tensor shows the same memory, and must go on doing so
    return True


def _owners(t: torch.Tensor) -> int:
    """Tensors that hold a tensor's storage."""
    storage = t.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # ``storage`` itself is one more


def _adjacent(column: Sequence[torch.Tensor]) -> bool:
    at = column[0].storage_offset()
    for t in column:
        if t.untyped_storage()._cdata != column[0].untyped_storage()._cdata or t.storage_offset() != at:
            return False
        at += t.numel()
    return True


def _pack(column: Sequence[torch.Tensor]) -> None:
    base = torch.empty(sum(t.numel() for t in column), dtype=column[0].dtype, device=column[0].device)
    at = 0
    for t in column:
        view = base[at : at + t.numel()].view(t.shape)
        view.copy_(t)
        t.data = view
        at += t.numel()
