"""``torch.compile(model, backend="webgpu")``: Dynamo's graph through AOTAutograd to plans."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext

from ..config import config
from ..errors import UnsupportedDTypeError
from ..registry import entry_of
from . import foreach, plan_cache
from .executor import CompiledGraph
from .origins import ROOT
from .passes import fuse
from .patterns import rewrite
from .prepare import AliasPattern, NotTraceableError, alias_pattern, may_mutate, overlap, prepare, takes_storage_offsets
from .resident import CpuResident, lives_on_cpu
from .siblings import Siblings, find, pack
from .structural import handler_of, key_of

log = logging.getLogger("torch_webgpu.compiler")

LEVELS = ("none", "pointwise", "full")

#: Graphs compiled in this process, in order (``explain`` and tests look at them).
compiled: list[CompiledGraph] = []


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of everything that has no lowering of its own."""
    chosen = foreach.decompositions()
    for op, function in decomposition_table.items():
        if not isinstance(op, torch._ops.OpOverload) or entry_of(key_of(op)) is not None or handler_of(op) is not None:
            continue
        chosen[op] = function
    return chosen


def _compile(module: fx.GraphModule, level: str, names: Sequence[str] = (), free: Collection[int] = ()) -> CompiledGraph:
    source = copy_of(module)
    inputs = [_argument_name(n, names) for n in module.graph.nodes if n.op == "placeholder"]
    graph = CompiledGraph(rewrite(module, level, free), source, lambda lowered: fuse(lowered, level))
    graph.inputs, graph.free = inputs, free
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


def _views_of_inputs() -> set[int] | None:
    """Positions of the results that AOTAutograd's wrapper makes anew from the inputs; None where that is not known."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return None
    first = metadata.num_mutated_inp_runtime_indices  # results before the program's own
    alias = (OutputType.is_input, OutputType.alias_of_input)
    return {first + i for i, info in enumerate(metadata.output_info) if info.output_type in alias}


def _copy(graph: fx.Graph) -> fx.Graph:
    new = fx.Graph()
    new.output(new.graph_copy(graph, {}))
    return new


def fusion_level(options: Mapping[str, Any]) -> str:
    """The level of what ``torch.compile`` was given; raises TypeError and ValueError for what is not known."""
    given = {**options, **(options.get("options") or {})}
    given.pop("options", None)
    level = given.pop("fusion", config.fusion)
    if given:
        raise TypeError(f"torch.compile(backend='webgpu') has no options {sorted(given)}; there is 'fusion' alone")
    if level not in LEVELS:
        raise ValueError(f"the option fusion={level!r} is not one of {', '.join(map(repr, LEVELS))}")
    return str(level)


def webgpu(
    module: fx.GraphModule, example_inputs: Sequence[Any], mode: str = "default", **options: Any
) -> Callable[..., Any]:
    """Dynamo backend: compiles a graph whose tensors are on the webgpu device, or all on the CPU (see ``resident``).

    ``torch.compile``'s ``mode`` changes nothing: plans are replayed without overhead and tuned in any case.

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
    try:
        return compile_or_raise(module, example_inputs, level)
    except (TorchDynamoException, UnsupportedDTypeError):
        raise
    except Exception as e:  # what eager PyTorch refuses too is raised by it, at the call
        log.warning(
            "a graph of %d nodes runs eagerly: %s: %s", len(module.graph.nodes), type(e).__name__, str(e).split("\n")[0]
        )
        return module


def compile_or_raise(module: fx.GraphModule, example_inputs: Sequence[Any], level: str) -> Callable[..., Any]:
    """As ``webgpu``, but raises where that would run the graph eagerly instead."""
    if lives_on_cpu(module):
        resident = CpuResident(prepare(module), example_inputs, partial(_compile_for_device, level=level))
        return _guarded(module, frozenset(), resident)  # copies of overlapping inputs would not overlap
    prepared, names = prepare(module), _input_names(module)
    expected, siblings = alias_pattern(example_inputs), find(module)
    entry = plan_cache.key_of(prepared, example_inputs, level)
    compile_graph = partial(_compile_for_device, prepared, level=level, names=names, entry=entry, siblings=siblings)
    # A graph whose sizes change is compiled: plans of other sizes than those on disk then cost little.
    changing = any(isinstance(x, torch.SymInt) for x in example_inputs)
    stored = None if changing else plan_cache.stored(entry, compile_graph)
    if stored is not None:
        compiled.append(stored)
        stored.traced = _traced()
        run = _unboxed(stored)
    else:
        run = compile_graph(example_inputs)
        if overlap(example_inputs) and may_mutate(prepared) and _views_of_inputs() != set():
            # AOTAutograd would take the views of the one base that it makes of such inputs.
            raise NotTraceableError("views of inputs that overlap are returned, and such inputs written")
    if level == "full":  # after tracing, which has noted where the parameters lie; plans are made at the first call
        pack(siblings, example_inputs)
    return _guarded(prepared, expected, run)


def _traced() -> list[CodeType]:
    """The code that Dynamo traced to the graph that is compiled now."""
    return list(TracingContext.get_traced_code() or ())


def _unboxed(graph: CompiledGraph) -> Callable[..., Any]:
    return lambda *args: graph(list(args))


def _compile_for_device(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    level: str,
    names: Sequence[str] = (),
    entry: str | None = None,
    siblings: Siblings = [],  # noqa: B006 - never changed
) -> Callable[..., Any]:
    def compile_backward(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
        return _compile(graph, level)

    def compile_forward(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
        return _compile(graph, level, names, _views_of_inputs() or ())

    def compile_inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        keep = plan_cache.keeper(entry, graph, module, siblings) if entry is not None else None
        made = compile_forward(graph, inputs)
        if keep is not None and made.self_contained:
            made.on_plan, made.entry, made.traced = keep, entry, _traced()
        return made

    run: Callable[..., Any] = aot_autograd(
        fw_compiler=compile_forward,
        bw_compiler=compile_backward,
        inference_compiler=compile_inference,
        decompositions=_decompositions(),
        keep_inference_input_mutations=True,
    )(module, example_inputs)  # type: ignore[arg-type]  # any module, says AOTAutograd
    return run


def _guarded(module: fx.GraphModule, expected: AliasPattern, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, or the graph itself op by op for inputs that lie otherwise than expected, if it writes inputs."""
    if not may_mutate(module):
        return run
    from_start = takes_storage_offsets(module)

    def guarded(*args: Any) -> Any:
        # Inputs that share storage but no bytes (weights laid out side by side) are as good as separate ones.
        if alias_pattern(args) != expected and (expected or overlap(args)):
            log.warning("inputs overlap otherwise than at compilation: this call runs eagerly")
            return module(*args)
        if from_start and any(isinstance(a, torch.Tensor) and a.storage_offset() for a in args):
            log.warning("as_strided, writes, and an input that is not at the start of its storage: this call runs eagerly")
            return module(*args)
        return run(*args)

    return guarded
