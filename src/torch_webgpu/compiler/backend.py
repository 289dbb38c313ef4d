"""``torch.compile(model, backend="webgpu")``: Dynamo's graph through AOTAutograd to plans."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._dynamo.backends.common import aot_autograd

from ..config import config
from ..registry import entry_of
from . import plan_cache
from .executor import CompiledGraph
from .origins import ROOT
from .passes import fuse
from .patterns import rewrite
from .prepare import alias_pattern, may_mutate, prepare
from .siblings import lay_out_siblings
from .structural import handler_of, key_of

log = logging.getLogger("torch_webgpu.compiler")

LEVELS = ("none", "pointwise", "full")

#: Graphs compiled in this process, in order (``explain`` and tests look at them).
compiled: list[CompiledGraph] = []


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of everything that has no lowering of its own."""
    chosen = {}
    for op, function in decomposition_table.items():
        if not isinstance(op, torch._ops.OpOverload) or entry_of(key_of(op)) is not None or handler_of(op) is not None:
            continue
        chosen[op] = function
    return chosen


def _compile(module: fx.GraphModule, level: str, names: Sequence[str]) -> CompiledGraph:
    source = copy_of(module)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    inputs = [_argument_name(n, names) for n in placeholders]
    graph = CompiledGraph(rewrite(module, level), source, lambda lowered: fuse(lowered, level))
    graph.inputs = inputs
    compiled.append(graph)
    return graph


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """The module with a graph of its own, which passes may change."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def _argument_name(node: fx.Node, names: Sequence[str]) -> str:
    """What Dynamo calls an input of AOTAutograd's graph."""
    index = getattr(node.meta.get("desc"), "idx", None)
    known = type(node.meta.get("desc")).__name__ == "PlainAOTInput" and isinstance(index, int) and index < len(names)
    return names[index] if known and index is not None else str(node.name)


_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")
_KEY = re.compile(r"\['([^']+)'\]")


def _input_names(module: fx.GraphModule) -> list[str]:
    """Names of the inputs of Dynamo's graph: as in ``named_parameters`` where they are a module's, else the argument's."""
    found = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            source = getattr(getattr(node, "_dynamo_source", None), "name", node.name)
            text = _MEMBER.sub(r".\1", str(source() if callable(source) else source))
            member = ROOT.sub("", text)
            keys = _KEY.findall(text)
            found.append(_KEY.sub(r".\1", member) if member != text or not keys else keys[-1])
    return found


def fusion_level(options: Mapping[str, Any]) -> str:
    """The level of what ``torch.compile`` was given; raises TypeError and ValueError for what is not known."""
    given = {**options, **options.get("options", {})}
    given.pop("options", None)
    level = given.pop("fusion", config.fusion)
    if given:
        raise TypeError(f"torch.compile(backend='webgpu') has no options {sorted(given)}; there is 'fusion' alone")
    if level not in LEVELS:
        raise ValueError(f"the option fusion={level!r} is not one of {', '.join(map(repr, LEVELS))}")
    return str(level)


def webgpu(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Dynamo backend: compiles a graph whose tensors are on the webgpu device.

    Args:
        module: Dynamo's graph.
        example_inputs: its inputs, real or fake.
        options: ``fusion`` (``none``, ``pointwise``, ``full``) instead of ``TORCH_WEBGPU_FUSION``, as ``torch.compile``'s
            ``options={"fusion": "none"}`` gives it; an unknown one raises TypeError.

    Returns:
        A callable with the graph's signature. Inputs that overlap otherwise than at compilation, where the graph writes its
        inputs, run the graph eagerly.
    """
    level = fusion_level(options)
    prepared, names = prepare(module), _input_names(module)
    entry = plan_cache.key_of(prepared, example_inputs, level)

    def compile_graph(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
        return _compile(graph, level, names)

    def compile_inference(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
        written = plan_cache.written_inputs(graph, prepared) if entry is not None else None
        made = _compile(graph, level, names)
        if entry is not None and written is not None and made.self_contained:
            made.on_first_plan = lambda metas, plan: plan_cache.keep(entry, metas, plan, written)
        return made

    def compile_all(inputs: Sequence[Any]) -> Callable[..., Any]:
        compiler = aot_autograd(
            fw_compiler=compile_graph,
            bw_compiler=compile_graph,
            inference_compiler=compile_inference,
            decompositions=_decompositions(),
            keep_inference_input_mutations=True,
        )
        made: Callable[..., Any] = compiler(prepared, inputs)
        return made

    found = plan_cache.stored(entry, compile_all)
    if found is not None:
        compiled.append(found)
        run = lambda *args: found(list(args))  # noqa: E731
    else:
        run = compile_all(example_inputs)
    if level == "full":  # after tracing, which has noted where the parameters lie; plans are made at the first call
        lay_out_siblings(module, example_inputs)
    if not may_mutate(prepared):
        return run
    expected = alias_pattern(example_inputs)

    def guarded(*args: Any) -> Any:
        if alias_pattern(args) != expected:
            log.warning("inputs overlap otherwise than at compilation: this call runs eagerly")
            return prepared(*args)
        return run(*args)

    return guarded
