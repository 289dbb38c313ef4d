"""Traces on disk: a method that was traced before, in the same state, is run by its stored plan without Dynamo.

A plan on disk saves what comes after Dynamo; of a large model Dynamo itself takes most of what is left. An entry says which
code Dynamo traced, what that and all that the method reaches looked like (``program_state``), which graph came of it, and
where the graph's inputs lie: among the call's arguments, or in which attribute.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import types
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.mutation_guard import install_generation_tagging_init

from .. import disk_cache
from . import backend, plan_cache
from .executor import CompiledGraph, recorded
from .program_state import ProgramState, UndescribableError, code_hash

log = logging.getLogger(__name__)
_numbers = itertools.count()

Call = tuple[CompiledGraph, list[Any]]  # a graph, and the inputs of a call of it

_SWITCHES = ("TORCH", "PYTORCH", "TRANSFORMERS_", "HF_", "USE_")
_NO_SWITCHES = ("TORCH_LOGS", "TORCH_WEBGPU_CACHE")  # they change nothing that is compiled


class Program:
    """A method of tensors that returns nothing, compiled as one graph; its traces are kept on disk.

    Every call is told as the graph that ran and its inputs, which may be replayed while the object stays as it is.
    """

    def __init__(self, method: Any, ignored: Collection[str] = (), **options: Any) -> None:
        """
        Args:
            method: of an object; it takes tensors alone.
            ignored: attributes that it does not read, of its object and all that can be reached from there.
            options: of ``torch.compile``.
        """
        self._method: types.MethodType = method
        self._ignored = frozenset(ignored)
        install_generation_tagging_init()  # as tracing does: it changes torch.nn.Module, which is part of the state
        self._compiled = torch.compile(_own(method), backend="webgpu", fullgraph=True, **options)
        self._restored: dict[Any, _Restored] = {}
        self._graphs: dict[str, plan_cache.StoredGraph] = {}
        self._traced: set[Any] = set()  # the kinds of arguments for which Dynamo was asked

    def __call__(self, *args: torch.Tensor) -> Call:
        kind = _kind(args)
        known = self._restored.get(kind)
        if known is not None and not known.state.intact():
            del self._restored[kind]
            known = None
        if known is None and kind not in self._traced:
            state = self._state()
            known = None if state is None else self._restore(state, kind)
            if known is None:
                self._traced.add(kind)
                return self._trace(args, kind, state)
            self._restored[kind] = known
        if known is not None:
            try:
                return known(args)
            except plan_cache.NoPlanError as e:
                log.debug("%s is traced after all: %s", self._method.__qualname__, e)
                self._restored.pop(kind)
                self._traced.add(kind)
        return self._trace(args, kind, None)

    def _trace(self, args: Sequence[torch.Tensor], kind: Any, before: ProgramState | None) -> Call:
        """Has Dynamo compile the method, unless it has, and run it; keeps what it found if it was in this state before."""
        with recorded() as calls:
            result = self._compiled(*args)
        if len(calls) != 1:
            name = self._method.__func__.__name__
            raise RuntimeError(f"{name} became {len(calls)} graphs; TORCH_LOGS=graph_breaks says why")
        if result is not None:
            raise TypeError(f"{self._method.__qualname__} returns {type(result).__name__}; a Program returns nothing")
        if before is not None:
            self._keep(before, args, kind, *calls[0])
        return calls[0]

    # ------------------------------------------------------------------------------------------------ entries

    def _state(self, traced: Collection[str] = ()) -> ProgramState | None:
        """The state of what the method reaches; None where nothing can be known of it."""
        if not plan_cache.in_use() or torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            return None
        try:
            return ProgramState([self._method.__self__, self._method.__func__], traced, self._ignored)
        except (UndescribableError, RecursionError) as e:
            log.debug("%s is traced in every process: %s", self._method.__qualname__, e)
            return None

    def _name(self, state: ProgramState, kind: Any) -> str:
        facts = [plan_cache.environment(), plan_cache.modes(), backend.config.fusion, _surroundings()]
        return "trace-" + disk_cache.digest(json.dumps([*facts, state.digest, repr(kind)]))

    def _keep(
        self, before: ProgramState, args: Sequence[torch.Tensor], kind: Any, graph: CompiledGraph, inputs: list[Any]
    ) -> None:
        codes = graph.traced
        read = {name for code in codes for name in code.co_names} & self._ignored
        places = [_place(value, args, before) for value in inputs]
        reasons = {
            "its plans are not on disk": graph.entry is None or not codes,
            "it changes what it reads": not before.intact(),
            f"it reads {sorted(read)}": bool(read),
            "an input is neither an argument nor an attribute": None in places,
        }
        found = [reason for reason, holds in reasons.items() if holds]
        if found:
            log.debug("%s is traced in every process: %s", self._method.__qualname__, "; ".join(found))
            return
        traced = sorted({code_hash(code) for code in codes})
        state = self._state(traced)
        if state is None:
            return
        entry = {"traced": traced, "state": state.digest, "graph": graph.entry, "inputs": places}
        disk_cache.store(self._name(before, kind), entry)

    def _restore(self, state: ProgramState, kind: Any) -> _Restored | None:
        entry = disk_cache.load(self._name(state, kind))
        if not isinstance(entry, dict):
            return None
        try:
            now = self._state(entry["traced"])
            if now is None or now.digest != entry["state"]:
                log.debug("%s is not as it was when it was traced", self._method.__qualname__)
                return None
            graph = self._graphs.get(entry["graph"]) or plan_cache.stored(entry["graph"], _no_plan)
            if graph is None:
                return None
            restored = _Restored(graph, [tuple(p) for p in entry["inputs"]], state, now)
            inputs = restored.inputs(None)
            if backend.config.fusion == "full":
                graph.lay_out(inputs)
        except (KeyError, TypeError, ValueError, IndexError) as e:
            log.debug("a trace is malformed: %s: %s", type(e).__name__, e)
            return None
        if self._graphs.setdefault(entry["graph"], graph) is graph and graph not in backend.compiled:
            backend.compiled.append(graph)
        return restored


class _Restored:
    """A trace of a method: the graph, and where its inputs lie; valid while ``state`` is intact."""

    def __init__(
        self, graph: plan_cache.StoredGraph, places: list[tuple[str, int]], found: ProgramState, state: ProgramState
    ) -> None:
        self.graph, self._places, self._tensors, self.state = graph, places, found.tensors, state

    def inputs(self, args: Sequence[torch.Tensor] | None) -> list[Any]:
        """What the graph takes; None in place of each argument if there are none."""
        found: list[Any] = []
        for where, index in self._places:
            if where == "argument":
                found.append(None if args is None else args[index])
            elif where == "state":
                container, key = self._tensors[index]
                found.append(container[key])
            else:
                found.append(index)
        return found

    def __call__(self, args: Sequence[torch.Tensor]) -> Call:
        inputs = self.inputs(args)
        self.graph(list(inputs))
        return self.graph, inputs


def _place(value: Any, args: Sequence[torch.Tensor], state: ProgramState) -> tuple[str, int] | None:
    if isinstance(value, int):
        return "number", value
    for i, argument in enumerate(args):
        if value is argument:
            return "argument", i
    index = state.place(value)
    return None if index is None else ("state", index)


def _no_plan(_: Sequence[Any]) -> Any:
    raise plan_cache.NoPlanError("its plan is not on disk")


def _kind(args: Sequence[torch.Tensor]) -> Any:
    return tuple((type(a), a.dtype, a.device, tuple(a.shape), a.stride(), a.requires_grad, a.is_inference()) for a in args)


@cache
def _surroundings() -> list[Any]:
    """Installed packages, and switches that libraries read."""
    names = {
        file.name
        for folder in map(Path, sys.path)
        if folder.is_dir()
        for file in folder.iterdir()
        if file.suffix in (".dist-info", ".egg-info", ".pth")
    }
    switches = {k: v for k, v in os.environ.items() if k.startswith(_SWITCHES) and k not in _NO_SWITCHES}
    return [sorted(names), sorted(switches.items())]


def _own(method: types.MethodType) -> types.MethodType:
    """A method with a code object of its own. Dynamo keeps what it compiled, and counts it, by code object: those of other
    objects would use up its limit, and outlive them."""
    function: Any = method.__func__
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    copied = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    return types.MethodType(copied, method.__self__)
