"""Scalar programs: the arithmetic of one element, as a list of WGSL expressions over earlier values.

A pointwise op is a program of one step; fusing ops concatenates their programs. Kernels that produce one number an element
(a matrix-vector product, a reduction) take a program to run on that number before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..wgsl import cast


@dataclass(frozen=True)
class Step:
    """One expression.

    Attributes:
        form: WGSL with ``{0}``, ``{1}``, … for its arguments.
        args: numbers of the values it takes: inputs first, then earlier steps.
        classes: class (``wgsl.TYPE``) that each argument is converted to.
        cls: class of the result.
    """

    form: str
    args: tuple[int, ...]
    classes: tuple[str, ...]
    cls: str


@dataclass(frozen=True)
class Program:
    """Steps over inputs; the last value is the result.

    Attributes:
        inputs: class of each input.
        steps: without any, the first input is the result.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    @staticmethod
    def of(form: str, inputs: Sequence[str], classes: Sequence[str], cls: str) -> Program:
        """One expression that takes every input once or more, converted to ``classes``."""
        return Program(tuple(inputs), (Step(form, tuple(range(len(inputs))), tuple(classes), cls),))

    @property
    def cls(self) -> str:
        """Class of the result."""
        return self.steps[-1].cls if self.steps else self.inputs[0]

    def emit(self, inputs: Sequence[str], prefix: str = "e") -> tuple[str, str]:
        """WGSL: statements (``let`` bindings ``<prefix>0``, …) and the expression of the result.

        Args:
            inputs: an expression of each input, in the input's class.
        """
        values = list(inputs)
        classes = list(self.inputs)
        lines = []
        for i, step in enumerate(self.steps):
            taken = [cast(values[a], classes[a], c) for a, c in zip(step.args, step.classes, strict=True)]
            lines.append(f"let {prefix}{i} = {step.form.format(*taken)};\n")
            values.append(f"{prefix}{i}")
            classes.append(step.cls)
        return "".join(lines), values[-1] if self.steps else values[0]

    def inline(self, index: int, producer: Program) -> Program:
        """This program with input ``index`` computed by ``producer``, whose inputs come last."""
        kept = [i for i in range(len(self.inputs)) if i != index]
        inputs = (*(self.inputs[i] for i in kept), *producer.inputs)
        lead = len(kept)
        inner = {i: lead + i for i in range(len(producer.inputs))}
        steps = []
        for i, step in enumerate(producer.steps):
            inner[len(producer.inputs) + i] = len(inputs) + i
            steps.append(Step(step.form, tuple(inner[a] for a in step.args), step.classes, step.cls))
        outer = {old: new for new, old in enumerate(kept)}
        outer[index] = inner[len(producer.inputs) + len(producer.steps) - 1] if producer.steps else inner[0]
        first = len(inputs) + len(steps)
        for i, step in enumerate(self.steps):
            outer[len(self.inputs) + i] = first + i
            steps.append(Step(step.form, tuple(outer[a] for a in step.args), step.classes, step.cls))
        if not self.steps and producer.steps and outer[index] != len(inputs) + len(steps) - 1:
            raise AssertionError("an identity program has one input")
        return Program(inputs, tuple(steps))


IDENTITY = Program(("f",))
