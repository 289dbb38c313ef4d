"""Padding by a constant, by reflection, and by replication of the border."""

from __future__ import annotations

from collections.abc import Sequence

from .. import wgsl
from ..kernels.pointwise import Operand
from ..recipe import Graph, Tensor, Words
from ..registry import lower
from .creation import fill
from .gather import gather, unpack

_SOURCE = {  # coordinate in the input (i32) of padded coordinate t in a dimension of n elements
    "constant": "",
    "reflection": "t = abs(t); t = select(t, 2 * (n - 1) - t, t >= n);",
    "replication": "t = clamp(t, 0, n - 1);",
}


def _pad(graph: Graph, x: Tensor, pads: Sequence[int], mode: str, value: Operand = 0) -> Tensor:
    """Pads trailing dimensions by (before, after) pairs, the last dimension first; negative pads cut."""
    padded = len(pads) // 2
    if len(pads) % 2 or padded > x.ndim:
        raise RuntimeError(
            f"{graph.op}: Padding length should be even and at most twice the input's dimensions; "
            f"input {list(x.sizes)}, padding {list(pads)}"
        )
    before = [pads[2 * (x.ndim - 1 - d)] if x.ndim - 1 - d < padded else 0 for d in range(x.ndim)]
    after = [pads[2 * (x.ndim - 1 - d) + 1] if x.ndim - 1 - d < padded else 0 for d in range(x.ndim)]
    sizes = [n + a + b for n, a, b in zip(x.sizes, before, after, strict=True)]
    for n, size, a, b in zip(x.sizes, sizes, before, after, strict=True):
        too_far = mode == "reflection" and max(a, b) >= n and max(a, b) > 0
        if size < 0 or too_far or (mode != "constant" and size == 0 and n != 0):
            raise RuntimeError(
                f"{graph.op}: Padding size should be less than the corresponding input dimension, but got: padding "
                f"({a}, {b}) for a dimension of {n} elements; input {list(x.sizes)}, resulting size {size}"
            )
    out = graph.new(sizes, x.dtype)
    return _pad_kernel(graph, x, out, before, mode, value)


def _pad_kernel(graph: Graph, x: Tensor, out: Tensor, before: Sequence[int], mode: str, value: Operand) -> Tensor:
    cls, rank, constant = x.dtype.cls, x.ndim, mode == "constant"
    if x.numel == 0:
        return fill(graph, out, value) if out.numel else out

    def words(w: Words) -> None:
        for d in range(rank):
            w.u32(f"n{d}", x.sizes[d])
            w.u32(f"o{d}", out.sizes[d])
            w.u32(f"x{d}", x.strides[d])
            w.u32(f"b{d}", before[d] & 0xFFFFFFFF)
        if constant:
            w.number("value", value, cls)

    def functions(w: Words) -> str:
        lines = [f"fn value_(i: u32) -> {wgsl.TYPE[cls]} {{\nvar at = 0u;"]
        lines.append(unpack("i", [f"c{d}" for d in range(rank)], [w.expr(f"o{d}") for d in range(1, rank)]) if rank else "")
        for d in range(rank):
            lines.append(f"{{ var t = bitcast<i32>(c{d} - {w.expr(f'b{d}')}); let n = bitcast<i32>({w.expr(f'n{d}')});")
            lines.append(_SOURCE[mode])
            if constant:
                lines.append(f"if (t < 0 || t >= n) {{ return {w.expr('value', cls)}; }}")
            lines.append(f"at += u32(t) * {w.expr(f'x{d}')}; }}")
        return "\n".join([*lines, "return ld_x(at);\n}"])

    return gather(graph, f"pad_{mode}", out, [("x", x)], words, functions, rank)


@lower("constant_pad_nd")
def _constant_pad(graph: Graph, x: Tensor, pads: Sequence[int], value: Operand = 0) -> Tensor:
    return _pad(graph, x, pads, "constant", value)


def _register_pad(mode: str, rank: int) -> None:
    @lower(f"{mode}_pad{rank}d")
    def lowering(graph: Graph, x: Tensor, pads: Sequence[int]) -> Tensor:
        if x.ndim not in (rank + 1, rank + 2) or len(pads) != 2 * rank:
            raise RuntimeError(
                f"{graph.op}: Expected {rank + 1}D or {rank + 2}D input and {2 * rank} padding values, but got input "
                f"{list(x.sizes)} and padding {list(pads)}"
            )
        return _pad(graph, x, pads, mode)


for _mode in ("reflection", "replication"):
    for _rank in (1, 2, 3):
        _register_pad(_mode, _rank)
