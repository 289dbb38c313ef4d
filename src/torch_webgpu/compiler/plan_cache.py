"""Plans on disk: a graph of Dynamo's that was compiled before, on the same device, is replayed without compiling it again.

Only what AOTAutograd adds nothing to at call time is kept: inference graphs whose inputs are written, if at all, by the plan
itself, and whose results are new tensors. An entry of a graph says that there are plans; each plan is an entry of its own,
under the graph and the sizes and places of a call's inputs, so that it needs none of the guards that compiling may add.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor

from .. import _C, disk_cache, recipe, runtime
from ..errors import LimitError, ShaderError
from ..kernels import tuning
from ..wgsl import DType
from .executor import CompiledGraph, record_call
from .plan import Dispatch, Plan
from .siblings import Siblings, pack

log = logging.getLogger(__name__)

_OUR_NAMESPACES = ("aten", "prims", "prim", "webgpu")
_OUR_MODULES = ("torch", "_operator", "operator", "math", "builtins")
_bypassed = False


@contextmanager
def bypassed() -> Iterator[None]:
    """Neither reads nor writes plans."""
    global _bypassed
    before, _bypassed = _bypassed, True
    try:
        yield
    finally:
        _bypassed = before


def in_use() -> bool:
    """Whether plans are read and written at all."""
    return not _bypassed and disk_cache.folder() is not None


class _UncacheableError(Exception):
    """Something in a graph or call has no stable name."""


# ---------------------------------------------------------------------------------------------------- keys


def key_of(module: fx.GraphModule, inputs: Sequence[Any], level: str) -> str | None:
    """Name of the entry of a call of Dynamo's graph; None where there can be none.

    It depends on all that the plan does: the graph and its inputs' metadata, PyTorch's modes, the versions and sources of
    PyTorch and this package, the device, its driver, limits and features, the fusion level, and measured kernel shapes.
    """
    if not in_use():
        return None
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        return None
    try:
        facts = [environment(), modes(), level, _graph(module), _inputs(inputs)]
    except _UncacheableError as e:
        log.debug("a graph is not cached: %s", e)
        return None
    return "graph-" + disk_cache.digest(json.dumps(facts))


@cache
def _sources() -> str:
    """A hash of this package: sources, tables and the native core."""
    total = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".wgsl", ".json", ".so", ".pyd", ".dylib"):
            total.update(f"{path.relative_to(root)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@cache
def environment() -> list[Any]:
    """What plans depend on besides the program: versions and sources, the device, measurements."""
    device = runtime.device()
    adapter = device.adapter
    measured = tuning.user_file()
    return [
        _sources(),
        sys.version,
        torch.__version__,
        torch.version.git_version,
        adapter.implementation,
        runtime.implementation(adapter.implementation).wheel_version(),
        [adapter.name, adapter.kind, adapter.backend, adapter.driver],
        sorted(device.features),
        sorted(device.limits.items()),
        hashlib.sha256(measured.read_bytes()).hexdigest() if measured.is_file() else "",
    ]


def modes() -> list[Any]:
    """What changes the meaning of a graph from outside of it."""
    devices = ("cpu", "webgpu")
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [(torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in devices],
        str(torch.get_default_dtype()),
        torch.are_deterministic_algorithms_enabled(),
        [getattr(torch._C, f"_get_{kind}_sdp_enabled")() for kind in ("flash", "mem_efficient", "math")],
    ]


def _graph(module: fx.GraphModule) -> list[Any]:
    places: dict[fx.Node, int] = {}
    nodes: list[Any] = []
    for node in module.graph.nodes:
        places[node] = len(places)
        if node.op == "placeholder":
            nodes.append("placeholder")
        else:
            target = _target(node)
            nodes.append([node.op, target, _value(node.args, places), _value(node.kwargs, places)])
    return nodes


def _target(node: fx.Node) -> str:
    target = node.target
    if node.op in ("output", "call_method"):
        return str(target)
    if node.op != "call_function" or isinstance(target, HigherOrderOperator):
        raise _UncacheableError(f"{node.op} {target}")
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        name = target.name() if isinstance(target, OpOverload) else target._qualified_op_name
        if name.split("::")[0] not in _OUR_NAMESPACES:
            raise _UncacheableError(f"{name} is somebody else's op")
        return str(target)
    module = getattr(target, "__module__", None) or getattr(getattr(target, "__objclass__", None), "__module__", None)
    name = getattr(target, "__qualname__", None)
    if not module and isinstance(target, types.BuiltinFunctionType):
        module = str(getattr(target.__self__, "__name__", ""))
    if not module or not name or "<" in name or module.split(".")[0] not in _OUR_MODULES:
        raise _UncacheableError(f"{target} has no name that later processes know")
    return f"{module}.{name}"


def _value(value: Any, places: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return f"%{places[value]}"
    if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
        return f"{type(value).__name__} {value}"
    if isinstance(value, slice):
        return ["slice", *(_value(v, places) for v in (value.start, value.stop, value.step))]
    if type(value) in (tuple, torch.Size) or isinstance(value, list):
        return ["list" if isinstance(value, list) else "tuple", *(_value(v, places) for v in value)]
    if isinstance(value, dict):
        return ["dict", *([_value(k, places), _value(v, places)] for k, v in value.items())]
    raise _UncacheableError(f"an argument of {type(value)}")


def _inputs(inputs: Sequence[Any]) -> list[Any]:
    storages: dict[int, int] = {}
    found: list[Any] = []
    for x in inputs:
        if isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool):
            found.append("int")  # the plan's entry has its value
            continue
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_conj() or x.is_neg():
            raise _UncacheableError(f"an input of {type(x)}")
        if type(x) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
            raise _UncacheableError(f"an input of {type(x)}")
        alias = storages.setdefault(x.untyped_storage()._cdata, len(storages))
        found.append([
            isinstance(x, torch.nn.Parameter), str(x.dtype), str(x.device), *(_sizes(v) for v in (x.shape, x.stride())),
            *_sizes([x.storage_offset()]), alias, x.requires_grad, x.is_leaf, x.is_inference(),
        ])  # fmt: skip
    return found


def _sizes(values: Sequence[Any]) -> list[Any]:
    """Sizes, those that change as what stands for them."""
    return [v if isinstance(v, int) else str(v) for v in values]


# ---------------------------------------------------------------------------------------------------- entries


def keeper(
    name: str, graph: fx.GraphModule, dynamo: torch.nn.Module, siblings: Siblings
) -> Callable[[tuple[Any, ...], Plan], None] | None:
    """While AOTAutograd compiles an inference graph: what stores the graph's plans as they are made. None where a call needs
    more than the plan."""
    context = TracingContext.try_get()
    meta: Any = context.fw_metadata if context is not None else None
    if meta is None or not isinstance(dynamo, fx.GraphModule):
        return None
    try:
        plain = (
            meta.num_outputs_aliased == 0
            and meta.num_mutated_inp_runtime_indices == 0
            and meta.num_intermediate_bases == 0
            and not meta.tokens
            and meta.grad_enabled_mutation is None
            and not meta.is_rng_op_functionalized
            and getattr(meta, "num_graphsafe_rng_states", 0) == 0
            and not any(o.requires_grad for o in meta.output_info)
        )
        written = [int(i) for i in meta.mutated_graph_handled_indices_seen_by_autograd]
    except AttributeError as e:
        log.debug("AOTAutograd's metadata is not as expected: %s", e)
        return None
    if not plain or not _same_signature(graph, dynamo):
        return None
    return lambda metas, plan: _keep(name, metas, plan, {"written": written, "siblings": siblings})


def _same_signature(graph: fx.GraphModule, dynamo: fx.GraphModule) -> bool:
    """Whether AOTAutograd's graph takes and returns what Dynamo's does, all results tensors."""
    inputs, expected = ([n for n in g.graph.nodes if n.op == "placeholder"] for g in (graph, dynamo))
    for i, node in enumerate(inputs):
        if getattr(node.meta.get("desc"), "idx", i) != i:
            return False
    results: Any = graph.graph.output_node().args[0]
    wanted: Any = dynamo.graph.output_node().args[0]
    if not all(isinstance(n, fx.Node) and isinstance(n.meta.get("val"), torch.Tensor) for n in results):
        return False
    return len(inputs) == len(expected) and isinstance(wanted, (tuple, list)) and len(results) == len(wanted)


def _signature(metas: Sequence[Any]) -> list[Any]:
    """What a plan may depend on of a call's inputs, as JSON's types."""
    found: list[Any] = []
    for m in metas:
        if isinstance(m, _C.Meta):
            facts = [m.ref, m.dtype, m.sizes, m.strides, m.offset, m.alias, m.wrapped, m.device]
        elif isinstance(getattr(m, "dtype", None), DType):
            facts = [m.ref, m.dtype.name, m.sizes, m.strides, m.offset, m.buffer, m.delta]
        else:
            facts = [type(m).__name__, None if isinstance(m, float) else m]  # a plan takes floats as they come
        found.append(facts)
    signature: list[Any] = json.loads(json.dumps(found))
    return signature


def _plan_name(graph: str, metas: Sequence[Any]) -> str:
    return "plan-" + disk_cache.digest(json.dumps([graph, _signature(metas)]))


_FIELDS = frozenset(("pipelines", "errors", "outputs", "arenas", "steps", "may_fail", "returned", "dispatches", "counts"))


def _keep(graph: str, metas: Sequence[Any], plan: Plan, about: dict[str, Any]) -> None:
    """Stores a plan, and that its graph has some."""
    outputs, arenas, steps, may_fail, specialised, returned = plan.recipe
    if specialised:
        return
    places = {number: i for i, number in enumerate(dict.fromkeys(step[0] for step in steps))}
    entry = {
        "pipelines": [vars(runtime.shader_of(number)) for number in places],
        "errors": recipe.known_errors() if may_fail else [],
        "outputs": outputs,
        "arenas": arenas,
        "steps": [(places[step[0]], *step[1:]) for step in steps],
        "may_fail": may_fail,
        "returned": returned,
        "dispatches": [
            [d.name, d.kernel, d.groups, d.read, d.written, places[d.pipeline], d.modules] for d in plan.dispatches
        ],
        "counts": [plan.outputs, plan.temporaries, plan.peak],
    }
    try:
        if disk_cache.store(_plan_name(graph, metas), entry):
            disk_cache.store(graph, about)
    except (TypeError, ValueError) as e:
        log.debug("a plan is not cached: %s", e)


def _plan_of(entry: dict[str, Any]) -> Plan:
    for kind, message in entry["errors"]:
        recipe.register_error(kind, message)
    shaders = [runtime.Shader(**{**p, "accesses": tuple(p["accesses"])}) for p in entry["pipelines"]]
    numbers = [runtime.create_pipeline(s.code, s.accesses, s.uniform_slots, s.name) for s in shaders]
    steps = [
        (numbers[place], [tuple(o) for o in operands], words, [tuple(p) for p in patches], tuple(groups))
        for place, operands, words, patches, groups in entry["steps"]
    ]
    outputs = [tuple(o) for o in entry["outputs"]]
    recipe_of_plan = (outputs, entry["arenas"], steps, entry["may_fail"], False, entry["returned"])
    dispatches = [
        Dispatch(name, kernel, tuple(groups), read, written, numbers[place], tuple(modules))
        for name, kernel, groups, read, written, place, modules in entry["dispatches"]
    ]
    count, temporaries, peak = entry["counts"]
    return Plan(recipe_of_plan, dispatches, tuple(entry["arenas"]), count, ["from disk"], temporaries, peak)


class NoPlanError(Exception):
    """There is no usable plan for a call."""


class StoredGraph(CompiledGraph):
    """A graph with plans on disk; it is compiled only where a call has none there."""

    def __init__(
        self, name: str, about: dict[str, Any], compile_graph: Callable[[Sequence[Any]], Callable[..., Any]]
    ) -> None:
        """
        Args:
            name: of the graph's entry.
            about: the entry: the inputs whose version a call counts up (``written``), and which are laid out together.
            compile_graph: makes the callable that does the graph's work, of example inputs.
        """
        self._start()
        self.entry: str = name
        self._written, self._siblings, self._compile = list(about["written"]), about["siblings"], compile_graph
        self._instead: Callable[..., Any] | None = None

    def lay_out(self, inputs: Sequence[Any]) -> None:
        """Lays weights out as the plans expect them."""
        pack(self._siblings, inputs)

    def __call__(self, args: list[Any]) -> list[Any]:
        inputs = list(args)
        results = self.run(args)
        if self._instead is None:  # else what was compiled has done this
            torch.autograd.graph.increment_version([inputs[i] for i in self._written])
            record_call(self, inputs)
        return results

    def run(self, args: list[Any], times: int = 1) -> list[Any]:
        """Replays the plan ``times`` times; the results are those of the last."""
        if self._instead is not None:
            for _ in range(times):
                results = list(self._instead(*args))
            return results
        try:
            found = _C.run_plans(self._handle, list(args), times)
        except (NoPlanError, ShaderError, LimitError) as e:
            log.debug("%s is compiled after all: %s", self.name, e)
            disk_cache.remove(self.entry)  # so that the next process makes what is missing
            self._instead = self._compile(args)
            return self.run(args, times)
        args.clear()
        assert found is not None
        return list(found)

    def _plan(self, metas: tuple[Any, ...]) -> Any:
        name = _plan_name(self.entry, metas)
        entry = disk_cache.load(name)
        if not isinstance(entry, dict) or not entry.keys() >= _FIELDS:
            raise NoPlanError("no plan for these inputs")
        try:
            plan = _plan_of(entry)
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise NoPlanError(f"the entry is malformed ({type(e).__name__}: {e})") from e
        log.debug("%s: %d dispatches from disk", self.name, len(plan.dispatches))
        self.plans.append(plan)
        return plan.recipe


def stored(name: str | None, compile_graph: Callable[[Sequence[Any]], Callable[..., Any]]) -> StoredGraph | None:
    """The graph of an entry, where there is one."""
    entry = None if name is None else disk_cache.load(name)
    if name is None or not isinstance(entry, dict) or not entry.keys() >= {"written", "siblings"}:
        return None
    return StoredGraph(name, entry, compile_graph)
