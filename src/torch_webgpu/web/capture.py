"""A program's plans for devices that are elsewhere: traced and compiled as for this one, and never launched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

from .. import _C
from ..compiler import backend, plan_cache
from ..compiler.executor import CompiledGraph, PlanError, planned_elsewhere
from ..compiler.lower import UnsupportedNodeError
from ..compiler.plan import Plan
from ..compiler.resident import lives_on_cpu
from ..errors import ExportError, ShaderError
from ..runtime import DescribedTarget, targeting

MOST_SIZES = 64  # of one program
_ON_CPU = "tensors that it reads are on the CPU; move the model, its inputs and all else with .to('webgpu')"
_WAY_OUT = "write it with ops that are on the device (`torch-webgpu explain` shows which), or export the model without it"


@dataclass
class Call:
    """One call of a program.

    Attributes:
        inputs: what the plan takes, in its order.
        names: of the inputs, where they are known.
        outputs: the plan's results, as allocated: their storage tells which is which.
        result: what the program returned, made of these.
        plans: one for each target.
    """

    inputs: list[Any]
    names: list[str]
    outputs: list[Any]
    result: Any
    plans: list[Plan]


class Capture:
    """A function or module of tensors, compiled as one graph, whose calls give plans instead of results."""

    def __init__(
        self, program: Callable[..., Any], targets: Sequence[DescribedTarget], what: str, fusion: str = "full"
    ) -> None:
        """
        Args:
            program: all tensors that it reads are on the webgpu device.
            what: its name in errors.
        """
        self._targets, self._what, self._fusion = targets, what, fusion
        self._run = torch.compile(_apart(program), backend=self._compile, fullgraph=True)
        self._plans: list[Plan] = []
        self._calls: list[tuple[CompiledGraph, list[Any], list[Any]]] = []
        self._encoded = 0  # commands before the call's own

    def __call__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], changing: Collection[tuple[torch.Tensor, int]] = ()
    ) -> Call:
        """Traces the program for these arguments, unless it was traced for others like them.

        Args:
            changing: tensors and dimensions of them that other calls have otherwise.

        Raises:
            ExportError: for a program that is not one plan; it names what is in the way.
        """
        for tensor, dim in changing:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
        self._plans, self._calls = [], []
        self._encoded = _encoded()
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            planned_elsewhere(self),
            torch._dynamo.config.patch(
                recompile_limit=MOST_SIZES, automatic_dynamic_shapes=False, assume_static_by_default=True
            ),
        ):
            result = self._called(args, kwargs)
        planned = len(self._calls) == 1 and len(self._plans) == len(self._targets)
        if not planned or not any(plan.dispatches for plan in self._plans):
            raise ExportError(f"{self._what} computes nothing on the device for these arguments; nothing can be exported")
        if _encoded() != self._encoded:
            raise ExportError(
                f"{self._what} works on its inputs outside of its plan (it writes a view of one, say, or they overlap): "
                "clone what it writes first"
            )
        graph, inputs, outputs = self._calls[0]
        if graph.host_ops:
            raise ExportError(
                f"{self._what}: {', '.join(graph.host_ops)} run on CPU tensors, beside the plan; move these tensors with "
                ".to('webgpu')"
            )
        return Call(inputs, list(graph.inputs), outputs, result, self._plans)

    def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return self._run(*args, **kwargs)
        except BackendCompilerFailed as e:
            inner = e.inner_exception
            raise inner if isinstance(inner, ExportError) else ExportError(f"{self._what}: {inner}") from e
        except TorchDynamoException as e:
            if "device mismatch" in str(e):
                raise ExportError(f"{self._what}: {_ON_CPU}") from e
            text = str(e).strip().split("\n\n")[0].replace("\n", " ")
            raise ExportError(f"{self._what} is not one graph, part of it needs Python: {text}") from e

    def _compile(self, module: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        if lives_on_cpu(module):
            raise ExportError(f"{self._what}: {_ON_CPU}")
        known = len(backend.compiled)
        try:
            with plan_cache.bypassed():
                return backend.compile_or_raise(module, inputs, self._fusion)
        finally:
            del backend.compiled[known:]  # they run nowhere
            self._encoded = _encoded()  # tracing makes constants

    def plan(self, graph: CompiledGraph, metas: tuple[Any, ...]) -> Plan:
        """See ``executor.Elsewhere``."""
        for target in self._targets:
            try:
                with targeting(target):
                    self._plans.append(graph.plan_for(metas))
            except UnsupportedNodeError as e:
                op = e.node.target
                raise ExportError(f"{self._what}: {op} cannot be part of a plan ({e.reason}); {_WAY_OUT}") from e
            except (PlanError, ShaderError) as e:
                raise ExportError(f"{self._what} does not fit the target: {e}") from e
        return self._plans[0]

    def called(self, graph: CompiledGraph, inputs: list[Any], results: list[Any]) -> None:
        """See ``executor.Elsewhere``."""
        self._calls.append((graph, list(inputs), list(results)))


def _apart(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program as a function with code of its own: what Dynamo keeps for it, by its code, ends with the capture."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return program(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call


def _encoded() -> int:
    _C.drain()
    return int(_C.stats()["encoded"])
