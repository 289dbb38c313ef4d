"""Linear layers and RMS norms as structured steps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..kernels.gemm import gemm
from ..kernels.matvec import MAX_ROWS, Dense, Int4, Int8, Norm, Weight, matvec, supports
from ..kernels.pointwise import contiguous
from ..kernels.program import IDENTITY, Program
from ..kernels.program import Step as Instruction
from ..recipe import Graph, Scalar, Tensor, product
from ..registry import apply, entry_of
from ..wgsl import ZERO
from .ir import DeferredGraph, Kernel


def weight_tensors(weight: Weight) -> list[Tensor]:
    """The tensors that hold a weight."""
    if isinstance(weight, Dense):
        return [weight.weight]
    found = [weight.weight, weight.scale]
    if isinstance(weight, Int4) and weight.minimum is not None:
        found.append(weight.minimum)
    return found


def _map_weight(weight: Weight, place: Callable[[Tensor], Tensor]) -> Weight:
    if isinstance(weight, Dense):
        return Dense(place(weight.weight))
    if isinstance(weight, Int8):
        return Int8(place(weight.weight), place(weight.scale))
    return Int4(place(weight.weight), place(weight.scale), None if weight.minimum is None else place(weight.minimum))


@dataclass
class Linear:
    """``out = program(x' W_0^T, …, x' W_s^T, *extras)`` with ``x'`` = x, or its RMS norm.

    Attributes:
        x: [M, K], rows contiguous.
        weights: the streams, [N, K] each.
        out: [M, N].
        program: its inputs are the streams' products (class ``f``), then the extras.
        extras: tensors of rank 2 that broadcast to [M, N], and numbers.
        norm: of x, only for few rows.
    """

    x: Tensor
    weights: list[Weight]
    out: Tensor
    program: Program
    extras: list[Any]
    norm: Norm | None
    name: str

    @property
    def few_rows(self) -> bool:
        """Whether the matrix-vector kernel may take it."""
        return self.x.sizes[0] <= MAX_ROWS

    def possible(self) -> bool:
        """Whether a kernel takes it as it is."""
        if self.few_rows and supports(self.x, self.weights, self.out, self.extras, self.norm):
            return True
        return len(self.weights) == 1 and self.norm is None and isinstance(self.weights[0], Dense)

    def reads(self) -> list[Tensor]:
        tensors = [self.x, *(t for w in self.weights for t in weight_tensors(w))]
        tensors += [e for e in self.extras if isinstance(e, Tensor)]
        return tensors + ([self.norm.gain] if self.norm is not None and self.norm.gain is not None else [])

    def writes(self) -> list[Tensor]:
        return [self.out]

    def map_tensors(self, place: Callable[[Tensor], Tensor]) -> Linear:
        norm = self.norm
        if norm is not None and norm.gain is not None:
            norm = Norm(place(norm.gain), norm.eps)
        return replace(
            self,
            x=place(self.x),
            weights=[_map_weight(w, place) for w in self.weights],
            out=place(self.out),
            extras=[place(e) if isinstance(e, Tensor) else e for e in self.extras],
            norm=norm,
        )

    def launch(self, graph: Graph) -> None:
        if self.few_rows and supports(self.x, self.weights, self.out, self.extras, self.norm):
            matvec(
                graph, self.x, self.weights, self.out, program=self.program, extras=self.extras, norm=self.norm
            )
            return
        program, extras = bake(self.program, [None, *self.extras])
        (weight,) = self.weights
        gemm(graph, self.x, weight.weight.transpose(0, 1), self.out, program=program, extras=extras[1:])


def bake(program: Program, operands: Sequence[Any]) -> tuple[Program, list[Any]]:
    """The program with operands that are known numbers written into its text; tensors and None stay inputs."""
    number = {i: x for i, x in enumerate(operands) if x is not None and not isinstance(x, Tensor)}
    if not number:
        return program, list(operands)
    kept = [i for i in range(len(operands)) if i not in number]
    lead = len(kept)
    place = {old: new for new, old in enumerate(kept)}
    steps: list[Instruction] = []
    for i, x in number.items():
        place[i] = lead + len(steps)
        steps.append(Instruction(_literal(x, program.inputs[i]), (), (), program.inputs[i]))
    shift = lead + len(steps) - len(program.inputs)
    for s in program.steps:
        args = tuple(place[a] if a < len(program.inputs) else a + shift for a in s.args)
        steps.append(Instruction(s.form, args, s.classes, s.cls))
    return Program(tuple(program.inputs[i] for i in kept), tuple(steps)), [operands[i] for i in kept]


def _literal(value: Any, cls: str) -> str:
    number = value.constant if isinstance(value, Scalar) else value
    if cls == "f":
        return f"bitcast<f32>({struct.unpack('<I', struct.pack('<f', number))[0]}u)"
    if cls == "l":
        return f"vec2<u32>({int(number) & 0xFFFFFFFF}u, {(int(number) >> 32) & 0xFFFFFFFF}u)"
    return ("true" if number else "false") if cls == "b" else (f"i32({int(number)})" if number != 0 else ZERO[cls])


@dataclass
class RmsNorm:
    """An RMS norm with a gain: the launches that compute it, and what a linear layer needs to absorb it."""

    x: Tensor
    gain: Tensor
    eps: Any
    out: Tensor
    kernels: list[Kernel]
    name: str = "rms_norm"

    def reads(self) -> list[Tensor]:
        return [t for k in self.kernels for t in k.reads()]

    def writes(self) -> list[Tensor]:
        return [t for k in self.kernels for t in k.writes()]

    def map_tensors(self, place: Callable[[Tensor], Tensor]) -> RmsNorm:
        kernels = [k.map_tensors(place) for k in self.kernels]
        return RmsNorm(place(self.x), place(self.gain), self.eps, place(self.out), kernels, self.name)

    def launch(self, graph: Graph) -> None:
        for kernel in self.kernels:
            kernel.launch(graph)


# ---------------------------------------------------------------------------------------------------- lowerings


def lower_rms_norm(graph: DeferredGraph, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension."""
    entry = entry_of("_fused_rms_norm")
    assert entry is not None
    x = contiguous(graph, x)
    start = len(graph.collected)
    epsilon = Scalar(graph, -1, False, eps, x.dtype, True)
    out = apply(graph, entry, [x, list(gain.sizes), gain, epsilon])[0]
    kernels = graph.collected[start:]
    del graph.collected[start:]
    graph.collected.append(RmsNorm(x, gain, epsilon, out, kernels))
    return out


def lower_linear(graph: DeferredGraph, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    """``x @ weight^T + bias``: x [..., K], weight [N, K], bias [N]."""
    if weight.ndim == 2 and weight.dtype is x.dtype and x.dtype.is_float and weight.strides[1] == 1:
        out = _linear(graph, x, Dense(weight), weight.sizes, bias)
        if out is not None:
            return out
    rows = contiguous(graph, x).reshape((product(x.sizes[:-1]), x.sizes[-1]))
    key = "mm" if bias is None else "addmm"
    entry = entry_of(key)
    assert entry is not None
    args = [rows, weight.transpose(0, 1)]
    out = apply(graph, entry, args if bias is None else [bias, *args, 1, 1])[0]
    return out.view((*x.sizes[:-1], weight.sizes[0]), _strides((*x.sizes[:-1], weight.sizes[0])))


def lower_quantised(name: str) -> Callable[..., Any]:
    """Lowering of ``webgpu::linear_int8`` or ``linear_int4``: few rows as a structured step, else as eager does."""

    def lowering(graph: DeferredGraph, x: Tensor, weight: Tensor, scale: Tensor, *rest: Any) -> Any:
        bias = rest[-1]
        if name == "linear_int8":
            packed: Weight = Int8(weight, scale)
            sizes = weight.sizes
        else:
            packed = Int4(weight, scale, rest[0])
            sizes = (weight.sizes[0], weight.sizes[1] * 8)
        if product(x.sizes[:-1]) <= MAX_ROWS:
            out = _linear(graph, x, packed, sizes, bias)
            if out is not None:
                return out
        entry = entry_of(f"webgpu::{name}")
        assert entry is not None
        return apply(graph, entry, [x, weight, scale, *rest])[0]

    return lowering


def _strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    out, step = [], 1
    for n in reversed(sizes):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def _linear(
    graph: DeferredGraph, x: Tensor, weight: Weight, sizes: tuple[int, ...], bias: Tensor | None
) -> Tensor | None:
    n, k = sizes
    lead = x.sizes[:-1]
    m = product(lead)
    if m == 0 or n == 0 or k == 0 or x.sizes[-1] != k:
        return None
    if not x.contiguous:
        x = contiguous(graph, x)
    rows = x.view((m, k), (k, 1))
    out = graph.new((*lead, n), x.dtype)
    flat = out.view((m, n), (n, 1))
    extras: list[Any] = []
    program = IDENTITY
    if bias is not None:
        extras.append(bias.view((m, n), (0, bias.strides[-1])))
        program = Program.of("({0} + {1})", ("f", "f"), ("f", "f"), "f")
    step = Linear(rows, [weight], flat, program, extras, None, "linear")
    if not step.possible():
        return None
    graph.collected.append(step)
    return out
