"""Where in the model a fused step comes from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import fx

from .ir import Step, is_fresh

#: What Dynamo calls the object that holds a module: ``L['self'].`` or ``G['model'].``, say.
ROOT = re.compile(r"^[LG](\[[^]]+\])+\.(__self__\.)?")


def module_path(node: fx.Node) -> str:
    """The innermost ``nn.Module`` that made a node, from the compiled function's argument on: ``model.layers.3.mlp``."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return ROOT.sub("", path) if ROOT.match(path) else ""


class Origins:
    """What a graph's steps were before fusion: each step's buffers, and the module that it comes from."""

    def __init__(self, steps: Sequence[Step], paths: Sequence[str]) -> None:
        """
        Args:
            steps: before any pass on them.
            paths: the module of each.
        """
        self._paths = list(paths)
        self._reads = [{t.buffer for t in step.reads()} for step in steps]
        self._writes = [{t.buffer for t in step.writes()} for step in steps]
        self._writers: dict[Any, list[int]] = defaultdict(list)
        self._inputs: dict[Any, list[tuple[int, int, int]]] = defaultdict(list)  # ranges of them, and who reads those
        for i, step in enumerate(steps):
            for buffer in self._writes[i]:
                self._writers[buffer].append(i)
            for t in step.reads():
                if not is_fresh(t.buffer):
                    self._inputs[t.buffer].append((t.offset, t.offset + t.extent, i))
        self._stands_for: dict[Any, set[Any]] = {}

    def of(self, step: Step) -> tuple[str, ...]:
        """The modules whose work a step does, in the order of their work; to be asked step by step, in order.

        They are those of what wrote its results, and back from there to the buffers that it reads.
        """
        known: set[Any] = set()
        for t in step.reads():
            known |= self._stands_for.get(t.buffer, {t.buffer})
        found: set[int] = set()
        reached: set[Any] = set()
        waiting = [b for t in step.writes() for b in self._old_names(step, t.buffer) if b != "error"]
        while waiting:
            buffer = waiting.pop()
            if buffer in reached:
                continue
            reached.add(buffer)
            for i in self._writers[buffer]:
                found.add(i)
                waiting += [b for b in self._reads[i] if b not in known and is_fresh(b)]
        return tuple(dict.fromkeys(self._paths[i] for i in sorted(found) if self._paths[i]))

    def _old_names(self, step: Step, buffer: Any) -> set[Any]:
        """What was written in place of a buffer before fusion: where layers were merged, what those wrote that read the same
        parts of the inputs."""
        if buffer in self._writers or not is_fresh(buffer):
            return {buffer}
        if buffer not in self._stands_for:
            names = self._stands_for[buffer] = set()
            for t in step.reads():
                for start, end, i in self._inputs.get(t.buffer, ()):
                    if start < t.offset + t.extent and t.offset < end:
                        names |= self._writes[i]
        return self._stands_for[buffer]
