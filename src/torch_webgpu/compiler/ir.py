"""The compiler's own representation: steps over buffers, in order.

Ops are lowered (by the same lowerings as eager) to steps. Elementwise work, linear layers and convolutions stay structured,
so that the fusion passes can rewrite them; every other kernel is kept as it will be launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..kernels.pointwise import emit_program
from ..kernels.program import Program
from ..recipe import Graph, Tensor, Words


@dataclass
class Pointwise:
    """``out = program(operands)`` elementwise; tensors among the operands have ``out``'s sizes.

    Attributes:
        operands: one an input of the program: a tensor, or a number.
        name: the ops it stands for, for people.
    """

    out: Tensor
    program: Program
    operands: list[Any]
    name: str

    def reads(self) -> list[Tensor]:
        return [x for x in self.operands if isinstance(x, Tensor)]

    def writes(self) -> list[Tensor]:
        return [self.out]

    def map_tensors(self, place: Callable[[Tensor], Tensor]) -> Pointwise:
        operands = [place(x) if isinstance(x, Tensor) else x for x in self.operands]
        return Pointwise(place(self.out), self.program, operands, self.name)

    def launch(self, graph: Graph) -> None:
        emit_program(graph, self.program, self.operands, self.out)


@dataclass
class Kernel:
    """A launch as ``Graph.launch`` takes it."""

    name: str
    kernel: str
    args: list[tuple[str, Tensor, str]]
    words: Callable[[Words], None]
    source: Callable[[Words], str]
    groups: tuple[int, int, int]
    static: Any

    def reads(self) -> list[Tensor]:
        return [t for _, t, _ in self.args]

    def writes(self) -> list[Tensor]:
        return [t for _, t, mode in self.args if mode not in "rv"]

    def map_tensors(self, place: Callable[[Tensor], Tensor]) -> Kernel:
        args = [(n, place(t), mode) for n, t, mode in self.args]
        return Kernel(self.name, self.kernel, args, self.words, self.source, self.groups, self.static)

    def launch(self, graph: Graph) -> None:
        graph.launch(self.kernel, self.args, self.words, self.source, self.groups, self.static)


Step = Any  # Pointwise | Kernel | Linear (linear.py) | RmsNorm: what has reads, writes, map_tensors and launch


def is_fresh(buffer: Any) -> bool:
    """Whether a buffer is one that the graph makes (``Graph.new`` counts them down from -1)."""
    return isinstance(buffer, int) and buffer < 0


@dataclass
class Module:
    """A lowered graph.

    Attributes:
        steps: in an order that keeps every buffer's reads and writes as the program wrote them.
        outputs: what a call returns: tensors (fresh ones, inputs, or views of either), numbers, None.
        created: fresh tensors, the one of buffer ``b`` at index ``-1 - b``.
        may_fail: whether a launch reports errors from the device.
        specialised: whether the steps hold for these values of the call's numbers only.
        paths: as lowered, the ``nn.Module`` that each step comes from (see ``Origins``).
    """

    steps: list[Step]
    outputs: list[Any]
    created: list[Tensor]
    may_fail: bool = False
    specialised: bool = False
    notes: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def with_steps(self, steps: Iterable[Step | None]) -> Module:
        """The same module with other steps, None left out."""
        return replace(self, steps=[s for s in steps if s is not None])

    def output_buffers(self) -> set[Any]:
        """Buffers that outlive the call."""
        return {t.buffer for t in self.outputs if isinstance(t, Tensor)}


class DeferredGraph(Graph):
    """Collects steps instead of launching."""

    deferred = True

    def __init__(self) -> None:
        super().__init__("")
        self.collected: list[Step] = []

    def pointwise(self, program: Program, operands: Sequence[Any], out: Tensor, name: str) -> None:
        self.collected.append(Pointwise(out, program, list(operands), name))

    def launch(
        self,
        name: str,
        args: Sequence[tuple[str, Tensor, str]],
        words: Callable[[Words], None],
        source: Callable[[Words], str],
        groups: tuple[int, int, int],
        static: Any = (),
    ) -> None:
        self.collected.append(Kernel(self.op, name, list(args), words, source, groups, static))
