"""What a model becomes: its plans, launch by launch, and what did not become part of one."""

from __future__ import annotations

import re
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from .. import _C, runtime
from ..recipe import REF_ERROR, REF_OUTPUT, REF_TEMP, Graph
from . import backend, plan_cache
from .executor import CompiledGraph, PlanError, recorded, watchers
from .lower import UnsupportedNodeError, lower
from .passes import fuse
from .patterns import rewrite
from .plan import Binding, Dispatch, Plan
from .siblings import lay_out_siblings


@dataclass(frozen=True)
class GraphPlan:
    """A plan, and what its buffers are.

    Attributes:
        graph: name of the compiled graph.
        encoded: dispatches that the native core encoded when it replayed the plan; equal to those of the plan.
        tensors: names of the inputs, by the number that bindings have.
    """

    graph: str
    plan: Plan
    encoded: int
    tensors: dict[int, str]

    def label(self, binding: Binding, offsets: bool = True) -> str:
        """What a binding is bound to, for people."""
        at = f"+{binding.start}" if binding.start and offsets else ""
        if binding.ref == REF_ERROR:
            return "errors"
        if binding.ref >= REF_TEMP:
            return f"arena {binding.ref - REF_TEMP}{at}" if offsets else "arena"
        if binding.ref >= REF_OUTPUT:
            return f"output {binding.ref - REF_OUTPUT}{at}"
        return self.tensors.get(binding.ref, f"input {binding.ref}") + at


@dataclass
class Explanation:
    """What ``explain`` found; printing it shows it as tables.

    Attributes:
        device: adapter and implementation.
        fusion: the level it was compiled with.
        plans: in the order of their first replay.
        captured: calls in Dynamo's graphs (function and method nodes).
        aten: calls after AOTAutograd: ATen ops, views among them.
        levels: dispatches at each fusion level; None where a graph does not become a plan.
        breaks: why Dynamo ended a graph before the end of the function.
        op_by_op: (graph, reason) of what ran eagerly inside of a compiled graph.
        fallbacks: ops that ran on the CPU during the call, and how often.
        weights: bytes of parameters and buffers that the graphs take.
        fold: whether printing shows equal launches of many layers as one row.
    """

    device: str
    fusion: str
    plans: list[GraphPlan] = field(default_factory=list)
    captured: int = 0
    aten: int = 0
    levels: dict[str, int | None] = field(default_factory=dict)
    breaks: list[str] = field(default_factory=list)
    op_by_op: list[tuple[str, str]] = field(default_factory=list)
    fallbacks: dict[str, int] = field(default_factory=dict)
    weights: int = 0
    fold: bool = True

    @property
    def dispatches(self) -> int:
        """Launches of all plans, each replayed once."""
        return sum(len(p.plan.dispatches) for p in self.plans)

    @property
    def pipelines(self) -> list[int]:
        """The native core's numbers of the distinct pipelines, in order of their first use."""
        return list(dict.fromkeys(d.pipeline for p in self.plans for d in p.plan.dispatches))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as what ``json.dumps`` takes."""
        plans = [
            {
                "graph": p.graph,
                "encoded": p.encoded,
                "arenas": list(p.plan.arenas),
                "temporaries": p.plan.temporaries,
                "peak": p.plan.peak,
                "dispatches": [_row(p, i, d) for i, d in enumerate(p.plan.dispatches)],
            }
            for p in self.plans
        ]
        dispatches = [d for p in self.plans for d in p.plan.dispatches]
        totals = {
            "dispatches": self.dispatches,
            "pipelines": len(self.pipelines),
            "read": sum(d.read for d in dispatches),
            "written": sum(d.written for d in dispatches),
            "weights": self.weights,
        }
        other = {k: v for k, v in vars(self).items() if k not in ("plans", "fold", "op_by_op", "weights")}
        reasons = [{"graph": graph, "reason": reason} for graph, reason in self.op_by_op]
        return {**other, "op_by_op": reasons, "totals": totals, "plans": plans}

    def write_wgsl(self, directory: str | Path) -> list[Path]:
        """One file of WGSL for each distinct pipeline, named by its place in ``pipelines`` and its kernel.

        Returns:
            The files; the directory is made where it does not exist.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for i, pipeline in enumerate(self.pipelines):
            used = [d for p in self.plans for d in p.plan.dispatches if d.pipeline == pipeline]
            path = folder / f"{i:03d}_{re.sub(r'[^A-Za-z0-9]+', '_', used[0].kernel)}.wgsl"
            about = "".join(f"// {n} x {name}\n" for name, n in Counter(d.name for d in used).items())
            path.write_text(about + runtime.shader_of(pipeline).code)
            written.append(path)
        return written

    def write_graph(self, path: str | Path) -> list[Path]:
        """The launches and what flows between them, as a Graphviz drawing.

        Args:
            path: ``.dot`` (or ``.gv``) for Graphviz's text alone, ``.svg`` for the drawing with the text beside it.

        Returns:
            The files written.

        Raises:
            ValueError: for another suffix.
            RuntimeError: for ``.svg`` without Graphviz installed; the text is written all the same.
        """
        from .explanation_graph import write_graph

        return write_graph(self.plans, Path(path))

    def __rich__(self) -> Any:
        from .explanation_table import render

        return render(self)

    def __str__(self) -> str:
        from .explanation_table import text

        return text(self)


def _row(plan: GraphPlan, index: int, d: Dispatch) -> dict[str, Any]:
    bindings = [{**asdict(b), "buffer": plan.label(b, offsets=False)} for b in d.bindings]
    return {**asdict(d), "index": index, "groups": list(d.groups), "modules": list(d.modules), "bindings": bindings}


# ---------------------------------------------------------------------------------------------------- collecting


class _Collector:
    """A Dynamo backend that compiles as ``webgpu`` does and looks on."""

    def __init__(self, level: str) -> None:
        self.level = level
        self.graphs: list[CompiledGraph] = []
        self.captured = 0
        self.breaks: list[str] = []
        self.weights: dict[Any, int] = {}
        self.plans: list[GraphPlan] = []
        self.found: dict[CompiledGraph, int] = {}

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.captured += sum(n.op in ("call_function", "call_method") for n in module.graph.nodes)
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            self.breaks.append(_break(reason))
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        run = backend.webgpu(module, inputs, fusion=self.level)
        lay_out_siblings(module, inputs)  # as the level "full" has them, whose launches are counted too
        for node, value in zip(placeholders, inputs, strict=True):
            if isinstance(value, torch.Tensor) and (isinstance(value, torch.nn.Parameter) or _is_member(node)):
                self.weights[value.untyped_storage()._cdata, value.storage_offset()] = value.nbytes
        return run

    def watch(self, graph: CompiledGraph, inputs: list[Any], encoded: int) -> None:
        for plan in graph.plans[self.found.get(graph, 0) :]:
            self.plans.append(GraphPlan(graph.name, plan, encoded, _tensor_names(graph, inputs)))
        self.found[graph] = len(graph.plans)


def _break(reason: Any) -> str:
    frame = reason.user_stack[-1] if reason.user_stack else None
    where = f" (line {frame.lineno} of {Path(frame.filename).name}: {(frame.line or '').strip()})" if frame else ""
    return " ".join(str(reason.reason).split("Hint:")[0].split()) + where


def _is_member(node: fx.Node) -> bool:
    source = getattr(getattr(node, "_dynamo_source", None), "name", "")
    return bool(re.search(r"\._(parameters|buffers)\[", str(source() if callable(source) else source)))


@contextmanager
def _watching(collector: _Collector) -> Iterator[list[tuple[CompiledGraph, list[Any]]]]:
    watchers.append(collector.watch)
    try:
        with recorded() as calls:
            yield calls
    finally:
        watchers.remove(collector.watch)


def explain(
    model: Callable[..., Any], *args: Any, fold: bool = True, fusion: str | None = None, **kwargs: Any
) -> Explanation:
    """Compiles a model for the webgpu device, runs it once, and tells what it became.

    Args:
        model: a module or function that ``torch.compile`` takes; it is called once, so what it writes is written.
        args, kwargs: of the call, on the device. For an inference plan call this under ``torch.no_grad()``.
        fold: whether printing shows equal launches of many layers as one row (it can be set on the result, too).
        fusion: ``none``, ``pointwise`` or ``full`` in place of ``TORCH_WEBGPU_FUSION``.

    Returns:
        The plans with their launches, totals, graph breaks and what ran op by op. Its dispatches are those that the
        native core replays, and ``GraphPlan.encoded`` what it was seen to encode.

    Raises:
        ValueError: for another ``fusion``.
        RuntimeError: where nothing was compiled: Dynamo found no tensor op in the call, or the frame is one it skips.
    """
    level = backend.fusion_level({} if fusion is None else {"fusion": fusion})
    collector = _Collector(level)
    start = len(backend.compiled)
    before = Counter(_fallbacks())
    original = getattr(model, "_orig_mod", model)  # of a module that is compiled already
    no_limit: dict[str, Any] = {
        "recompile_limit": 1 << 30,
        "accumulated_recompile_limit": 1 << 30,
    }  # earlier compilations do not count
    with plan_cache.bypassed(), _watching(collector) as calls, torch._dynamo.config.patch(**no_limit):
        torch.compile(_fresh(original), backend=collector, dynamic=False)(*args, **kwargs)
    graphs = backend.compiled[start:]
    if not graphs:
        raise RuntimeError(
            "explain() saw no graph: torch.compile found no tensor op in this call, or does not trace it "
            "(TORCH_LOGS=graph_breaks says why)"
        )
    properties = torch.get_device_module("webgpu").get_device_properties()
    result = Explanation(f"{properties.name} ({properties.implementation}, {properties.backend})", level, fold=fold)
    inputs = {graph: args for graph, args in reversed(calls)}
    result.plans = collector.plans
    result.captured, result.breaks = collector.captured, collector.breaks
    result.aten = sum(n.op == "call_function" for g in graphs for n in g.source.graph.nodes)
    result.levels = {name: _count([(g, inputs[g]) for g in graphs if g in inputs], name) for name in backend.LEVELS}
    result.op_by_op = [(g.name, reason) for root in graphs for g in _with_parts(root) for reason in g.reasons]
    result.fallbacks = dict(Counter(_fallbacks()) - before)
    result.weights = sum(collector.weights.values())
    return result


def _fresh(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model under a code object of its own: what Dynamo keeps of it counts against nobody's limit of recompilations."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return types.FunctionType(call.__code__.replace(), globals(), "explained", None, call.__closure__)


def _fallbacks() -> dict[str, int]:
    from .. import fallbacks

    return fallbacks()


def _with_parts(graph: CompiledGraph) -> Iterator[CompiledGraph]:
    yield graph
    for part in graph.parts:
        yield from _with_parts(part)


class _DescribedError(Exception):
    """Stops a replay whose arguments alone are of interest."""


def _describe(inputs: list[Any]) -> tuple[Any, ...]:
    """What a plan is told of a call's inputs."""
    found: list[tuple[Any, ...]] = []

    def miss(metas: tuple[Any, ...]) -> Any:
        found.append(metas)
        raise _DescribedError

    with suppress(_DescribedError):
        _C.run_plans(_C.make_plans("description", miss), inputs, 1)
    return found[0]


def _tensor_names(graph: CompiledGraph, inputs: list[Any]) -> dict[int, str]:
    metas = _describe(inputs)
    names = [*graph.inputs, *(f"constant {i}" for i in range(len(metas)))]
    if not graph.inputs:
        names = [str(n.name) for n in graph.module.graph.nodes if n.op == "placeholder"]
    return {meta.ref: name for meta, name in zip(metas, names, strict=False) if hasattr(meta, "ref")}


# ---------------------------------------------------------------------------------------------------- levels


class _Counter(Graph):
    """Counts launches and makes nothing."""

    def __init__(self) -> None:
        super().__init__("")
        self.count = 0

    def launch(self, *args: Any, **kwargs: Any) -> None:
        self.count += 1


def _count(calls: Sequence[tuple[CompiledGraph, list[Any]]], level: str) -> int | None:
    """Dispatches that graphs have at a level; None where one of them is no plan there."""
    counter = _Counter()
    for graph, args in calls:
        module = rewrite(backend.copy_of(graph.source), level, graph.free)
        twin = CompiledGraph(module, module, partial(fuse, level=level))
        try:
            steps = fuse(lower(twin.module, _describe(twin.taken(args)[0])), level).steps
            for step in steps:
                step.launch(counter)
        except (UnsupportedNodeError, PlanError):
            return None
    return counter.count
