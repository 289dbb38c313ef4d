"""What a graph does with CPU tensors: run by PyTorch, before the plan where the plan needs it, after it where it writes.

Optimizers keep step counts on the CPU, and Dynamo hands numbers that may change over as 0-dim CPU tensors. The plan takes
what comes of them as numbers in its uniforms, so that it holds for every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


def evaluate(node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    """The value of a node, computed from those in ``env``."""
    if node not in env:
        args = fx.node.map_arg(node.args, lambda n: evaluate(n, env))
        kwargs = fx.node.map_arg(node.kwargs, lambda n: evaluate(n, env))
        assert callable(node.target)
        env[node] = node.target(*args, **kwargs)
    return env[node]


@dataclass
class HostPart:
    """The nodes of a graph that PyTorch runs on the CPU.

    Attributes:
        placeholders: the graph's inputs.
        first: nodes that run before the plan.
        passed: those of them that the plan takes as further inputs, in order.
        last: nodes that write CPU tensors, after the plan.
        outputs: (index, node) of the graph's outputs that are host values.
    """

    placeholders: list[fx.Node]
    first: list[fx.Node]
    passed: list[fx.Node]
    last: list[fx.Node]
    outputs: list[tuple[int, fx.Node]]

    def before(self, inputs: list[Any]) -> dict[fx.Node, Any]:
        """Runs what the plan needs; appends it to the inputs."""
        env: dict[fx.Node, Any] = dict(zip(self.placeholders, inputs, strict=True))
        for node in self.first:
            evaluate(node, env)
        inputs += [env[n] for n in self.passed]
        return env

    def after(self, env: dict[fx.Node, Any], results: list[Any]) -> None:
        """Runs what writes; fills in the outputs."""
        for node in self.last:
            evaluate(node, env)
        for index, node in self.outputs:
            results[index] = evaluate(node, env)


def split_host(module: fx.GraphModule) -> tuple[fx.GraphModule, HostPart | None]:
    """The graph without its nodes on CPU tensors, and those; the graph itself where it has none."""
    graph = module.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    host = {n for n in placeholders if _on_cpu(n)}
    first: list[fx.Node] = []
    last: list[fx.Node] = []
    for node in graph.nodes:
        if node.op != "call_function" or not _runs_on_host(node, host):
            continue
        host.add(node)
        (last if _writes(node) else first).append(node)
    returned: Any = graph.output_node().args[0]
    outputs = [(i, n) for i, n in enumerate(returned) if isinstance(n, fx.Node) and n in host]
    if not first and not last and not outputs:
        return module, None
    rest = fx.Graph()
    place: dict[fx.Node, fx.Node] = {}
    for node in placeholders:
        place[node] = rest.node_copy(node)
    calls = [n for n in graph.nodes if n.op == "call_function" and n not in host]
    passed = [n for n in first if any(u in n.users for u in calls)]
    for node in passed:
        place[node] = rest.placeholder(f"host_{node.name}")
        place[node].meta = dict(node.meta)
    for node in calls:
        place[node] = rest.node_copy(node, lambda n: place[n])
    rest.output([place[n] if isinstance(n, fx.Node) and n not in host else (None if n in host else n) for n in returned])
    rest.eliminate_dead_code()
    return fx.GraphModule(module, rest), HostPart(placeholders, first, passed, last, outputs)


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _on_cpu(node: fx.Node) -> bool:
    found = _tensors(node.meta.get("val"))
    return bool(found) and all(t.device.type == "cpu" for t in found)


def _runs_on_host(node: fx.Node, host: set[fx.Node]) -> bool:
    """Whether all tensors it takes are the host's, and what it makes too (or is a copy for the device)."""
    sources = [n for n in node.all_input_nodes if _tensors(n.meta.get("val"))]
    if any(n not in host for n in sources):
        return False
    upload = node.target is torch.ops.aten._to_copy.default and _tensors(sources[0].meta["val"])[0].dim() > 0
    return _on_cpu(node) or upload


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
