"""A compiled graph at call time: plans by signature, and eager execution of what no plan can hold."""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any, Protocol

import torch
from torch import fx

from .. import _C
from ..errors import LimitError, ShaderError
from .host import evaluate, split_host
from .ir import Module
from .lower import UnsupportedNodeError, lower
from .origins import Origins
from .plan import Plan, assemble

log = logging.getLogger("torch_webgpu.compiler")  # TORCH_LOGS="+torch_webgpu.compiler" shows it
_numbers = itertools.count()

MOST_PLANS = 256  # of a graph: more sizes than come back

Passes = Callable[[Module], Module]

_recorders: list[list[tuple[CompiledGraph, list[Any]]]] = []
#: Told of each replay: the graph, what its plan took, and how many dispatches the native core encoded for it.
watchers: list[Callable[[CompiledGraph, list[Any], int], None]] = []


@contextmanager
def recorded() -> Iterator[list[tuple[CompiledGraph, list[Any]]]]:
    """Notes the calls of compiled graphs made inside: each graph with its inputs, to be replayed without Dynamo."""
    calls: list[tuple[CompiledGraph, list[Any]]] = []
    _recorders.append(calls)
    try:
        yield calls
    finally:
        _recorders.remove(calls)


class Elsewhere(Protocol):
    """Who plans in place of this device; see ``planned_elsewhere``."""

    def plan(self, graph: CompiledGraph, metas: tuple[Any, ...]) -> Plan:
        """The plan for a call's arguments, as the native core describes them; its results are allocated here."""

    def called(self, graph: CompiledGraph, inputs: list[Any], results: list[Any]) -> None:
        """Told of each call: what the plan took, and its results, which hold anything."""


_elsewhere: list[Elsewhere] = []


@contextmanager
def planned_elsewhere(planner: Elsewhere) -> Iterator[None]:
    """Inside, calls of compiled graphs make plans through ``planner`` and launch nothing.

    Graphs that are called inside are of no use afterwards.
    """
    _elsewhere.append(planner)
    try:
        yield
    finally:
        _elsewhere.remove(planner)


def record_call(graph: CompiledGraph, args: Sequence[Any]) -> None:
    """Tells those who are inside of ``recorded``."""
    for calls in _recorders:
        calls.append((graph, list(args)))


class PlanError(Exception):
    """A plan that could not be made; the graph runs op by op instead."""


class CompiledGraph:
    """An ATen graph as a boxed callable: takes the list of flat inputs, returns the list of outputs.

    Attributes:
        plans: the plans made so far, in order; the last ``MOST_PLANS``; the native core keeps as many, those used last.
        inputs: names of its inputs, where they are known.
        free: see ``patterns.rewrite``.
        reasons: why it, or an op of it, does not run as a plan.
        parts: the graphs that it was split into.
        entry: name of the graph's entry on disk, if its plans are kept there.
        traced: the code that Dynamo traced to it, where it has an entry.
        on_plan: told of each plan, and what it was made for.
    """

    def __init__(self, module: fx.GraphModule, source: fx.GraphModule, fuse: Passes) -> None:
        """
        Args:
            module: the graph after the passes on it.
            source: the graph before them, run op by op where a plan fails.
            fuse: passes on the lowered steps.
        """
        self._start()
        self.source, self._fuse = source, fuse
        self._constants = lift_constants(module)
        self.module, self._host = split_host(module)
        self._numbers = _number_outputs(self.module)

    def _start(self) -> None:
        self._boxed_call = True  # AOTAutograd's protocol: one list of inputs, which the callee may clear
        self.name = f"compiled graph {next(_numbers)}"
        self.plans: list[Plan] = []
        self.inputs: list[str] = []
        self.entry: str | None = None
        self.traced: list[CodeType] = []
        self.free: Collection[int] = ()
        self.reasons: list[str] = []
        self.parts: list[CompiledGraph] = []
        self.on_plan: Callable[[tuple[Any, ...], Plan], None] | None = None
        self._fallback: Callable[[list[Any]], list[Any]] | None = None  # what runs instead of plans: the graph in pieces,
        self._op_by_op = False  # or op by op, from its source
        self._handle = _C.make_plans(self.name, self._plan, MOST_PLANS)

    @property
    def degraded(self) -> bool:
        """Whether it runs in pieces or op by op, instead of as one plan."""
        return self._op_by_op or self._fallback is not None

    @property
    def host_ops(self) -> list[str]:
        """The ops that PyTorch runs on CPU tensors, beside the plan."""
        nodes = [*self._host.first, *self._host.last] if self._host is not None else []
        return sorted({str(n.target) for n in nodes})

    @property
    def self_contained(self) -> bool:
        """Whether a call is the plan alone: no constants or numbers of the host besides the inputs, all results tensors."""
        return not self._constants and not self._numbers and self._host is None

    def taken(self, args: Sequence[Any]) -> tuple[list[Any], dict[fx.Node, Any]]:
        """What the plan takes: the call's inputs, the constants and what the host makes of them; and the host's values."""
        inputs = [*args, *self._constants]
        return inputs, self._host.before(inputs) if self._host is not None else {}

    def __call__(self, args: list[Any]) -> list[Any]:
        record_call(self, args)
        return self.run(args)

    def run(self, args: list[Any], times: int = 1) -> list[Any]:
        """Replays the plan for these inputs ``times`` times; the results are those of the last."""
        if self._host is not None:
            for _ in range(times - 1):
                self.run(list(args))
            times = 1
        if self._op_by_op:
            for _ in range(times):
                results = _interpret(self.source, args)
            return results
        inputs, env = self.taken(args)
        try:
            results = self._replay(inputs, times)
        except UnsupportedNodeError as e:
            self._degrade(e)
            return self.run(args, times)
        except (LimitError, PlanError) as e:
            log.warning("%s runs op by op: %s", self.name, e)
            self.reasons.append(f"all ops: {e}")
            self._op_by_op = True
            return self.run(args, times)
        if _elsewhere:
            _elsewhere[-1].called(self, inputs, results)
        args.clear()
        for index, number in self._numbers:
            results[index] = number(inputs)
        if self._host is not None:
            self._host.after(env, results)
        return results

    def _replay(self, inputs: list[Any], times: int) -> list[Any]:
        if self._fallback is None:
            encoded = _encoded() if watchers else 0
            found = _C.run_plans(self._handle, inputs, times)
            assert found is not None  # Python made the plan, and raised where it could not
            for watcher in watchers:
                watcher(self, inputs, _encoded() - encoded)
            return list(found)
        for _ in range(times):
            results = self._fallback(list(inputs))
        return results

    def plan_for(self, metas: tuple[Any, ...]) -> Plan:
        """Makes the plan for a call's arguments, as the native core describes them, and the present target.

        Raises:
            UnsupportedNodeError: for an op that no plan can hold.
            ShaderError: for a kernel that does not compile.
            PlanError: for any other reason why there is none.
        """
        try:
            lowered = lower(self.module, metas)
            origins = Origins(lowered.steps, lowered.paths)
            return assemble(self._fuse(lowered), origins)
        except (UnsupportedNodeError, ShaderError):
            raise
        except Exception as e:
            raise PlanError(f"{type(e).__name__}: {e}") from e

    def _plan(self, metas: tuple[Any, ...]) -> Any:
        if _elsewhere:
            outputs, _, _, _, _, returned = _elsewhere[-1].plan(self, metas).recipe
            return outputs, [], [], False, False, returned
        plan = self.plan_for(metas)
        log.info("%s: %d dispatches, arenas of %s bytes", self.name, len(plan.dispatches), list(plan.arenas))
        self.plans.append(plan)
        del self.plans[:-MOST_PLANS]
        if self.on_plan is not None:
            self.on_plan(metas, plan)
        return plan.recipe

    def _degrade(self, error: UnsupportedNodeError) -> None:
        first = error.node.args[0] if error.node.args else None
        op = first if isinstance(first, torch._ops.OpOverload) else error.node.target  # what a higher-order op wraps
        log.warning("%s: %s runs eagerly (%s)", self.name, op, error.reason)
        if error.node.graph is not self.module.graph:
            raise RuntimeError(f"a node of another graph: {error}") from error
        self.reasons.append(f"{op}: {error.reason}")
        self._fallback, self.parts = _split_at(self.module, error.node, self._fuse)


def _encoded() -> int:
    _C.drain()
    return int(_C.stats()["encoded"])


def lift_constants(module: fx.GraphModule) -> list[torch.Tensor]:
    """Makes attribute tensors inputs, after the others."""
    constants: list[torch.Tensor] = []
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node in [n for n in module.graph.nodes if n.op == "get_attr"]:
        value: Any = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        anchor = placeholders[-1] if placeholders else None
        with module.graph.inserting_after(anchor) if anchor is not None else module.graph.inserting_before(node):
            new = module.graph.placeholder(f"constant_{len(constants)}")
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
        placeholders.append(new)
        constants.append(value)
    return constants


def _number_outputs(module: fx.GraphModule) -> list[tuple[int, Callable[[list[Any]], Any]]]:
    """For outputs that are numbers, how to get them from the inputs."""
    found: list[tuple[int, Callable[[list[Any]], Any]]] = []
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]

    def evaluated(node: fx.Node) -> Callable[[list[Any]], Any]:
        return lambda inputs: evaluate(node, dict(zip(placeholders, inputs, strict=True)))

    returned: Any = module.graph.output_node().args[0]
    for i, value in enumerate(returned):
        if isinstance(value, fx.Node) and not _is_tensor(value):
            found.append((i, evaluated(value)))
        elif value is not None and not isinstance(value, fx.Node):
            found.append((i, partial(_constant, value)))
    return found


def _constant(number: Any, inputs: list[Any]) -> Any:
    return number


def _is_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, (int, float, bool, tuple, list, torch.SymInt, torch.SymFloat, torch.SymBool))


def _interpret(module: fx.GraphModule, args: list[Any]) -> list[Any]:
    return list(fx.Interpreter(module).run(*args, enable_io_processing=False))


# ---------------------------------------------------------------------------------------------------- splitting


def _split_at(
    module: fx.GraphModule, unsupported: fx.Node, fuse: Passes
) -> tuple[Callable[[list[Any]], list[Any]], list[CompiledGraph]]:
    """The graph as a plan before the node, the node eagerly, a plan after it (each split again where it must be)."""
    nodes = _with_parts(module)
    at = nodes.index(unsupported)
    parts = [n for n in nodes[at + 1 :] if n.target is operator.getitem and n.args[0] is unsupported]
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    returned: Any = module.graph.output_node().args[0]
    used_last = {n for n in returned if isinstance(n, fx.Node)}
    rest = nodes[at + 1 + len(parts) :]
    later = {unsupported, *rest}
    needed_after = [n for n in nodes[:at] if _is_tensor(n) and (n in used_last or any(u in later for u in n.users))]
    before, before_inputs = _part(module, nodes[:at], needed_after)
    tail_results = [n for n in rest if n in used_last and _is_tensor(n)]
    after, after_inputs = _part(module, rest, tail_results)
    first, second = (CompiledGraph(part, part, fuse) for part in (before, after))

    def run(args: list[Any]) -> list[Any]:
        env: dict[fx.Node, Any] = dict(zip(placeholders, args, strict=True))
        env.update(zip(needed_after, first.run([evaluate(n, env) for n in before_inputs]), strict=True))
        for node in (unsupported, *parts):
            evaluate(node, env)
        env.update(zip(tail_results, second.run([evaluate(n, env) for n in after_inputs]), strict=True))
        return [evaluate(n, env) if isinstance(n, fx.Node) else n for n in returned]

    return run, [first, second]


def _with_parts(module: fx.GraphModule) -> list[fx.Node]:
    """The calls in order, the parts of a result directly after it: between two calls there are tensors and numbers alone."""
    nodes: list[fx.Node] = []
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        nodes.append(node)
        at = len(nodes) - 1
        while at < len(nodes):
            nodes += [u for u in nodes[at].users if u.target is operator.getitem]
            at += 1
    return nodes


def _part(module: fx.GraphModule, nodes: list[fx.Node], results: list[fx.Node]) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A graph of some nodes in order, and the nodes outside that it takes as inputs; sizes are worked out again inside."""
    graph = fx.Graph()
    inside: dict[fx.Node, fx.Node] = {}
    inputs: list[fx.Node] = []

    def take(node: fx.Node) -> fx.Node:
        if node not in inside:
            if not _is_tensor(node) and node.op == "call_function":
                inside[node] = graph.node_copy(node, take)
            else:
                raise KeyError(node)
        return inside[node]

    wanted = set(nodes)

    def collect(node: fx.Node) -> None:
        if node in wanted or node in inputs:
            return
        if not _is_tensor(node) and node.op == "call_function":
            for source in node.all_input_nodes:
                collect(source)
        else:
            inputs.append(node)

    for node in nodes:
        for source in node.all_input_nodes:
            collect(source)
    for node in inputs:
        inside[node] = graph.placeholder(node.name)
        inside[node].meta = dict(node.meta)
    for node in nodes:
        inside[node] = graph.node_copy(node, take)
    graph.output(tuple(inside[n] for n in results))
    return fx.GraphModule(module, graph), inputs
