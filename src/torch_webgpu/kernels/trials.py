"""Launches recorded by hand: an op whose lowering is looked up by name, for tests and measurements of single kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..recipe import Graph, Tensor
from ..registry import lower

Record = Callable[[Graph, list[Tensor], Tensor, Any], None]

_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define("trial(str key, Tensor[] inputs, Tensor(a!) out, float number=0.) -> Tensor(a!)")
_records: dict[str, Record] = {}
_keys = itertools.count()


@lower("webgpu::trial")
def _trial(graph: Graph, key: str, inputs: list[Tensor], out: Tensor, number: Any = 0.0) -> Tensor:
    _records[key](graph, inputs, out, number)
    return out


class Trial:
    """An op that launches what ``record(graph, inputs, out, number)`` records; called with tensors, it returns ``out``."""

    def __init__(self, record: Record) -> None:
        self.key = f"trial{next(_keys)}"
        _records[self.key] = record

    def __call__(self, inputs: Sequence[torch.Tensor], out: torch.Tensor, number: float = 0.0) -> torch.Tensor:
        result: torch.Tensor = torch.ops.webgpu.trial(self.key, list(inputs), out, number)
        return result

    def forget(self) -> None:
        """Lets the launches go; the op's recipes stay until ``torch_webgpu`` clears them."""
        _records.pop(self.key, None)
