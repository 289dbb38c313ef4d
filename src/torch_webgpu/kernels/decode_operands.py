"""What the kernels of decode attention share: their operands, and how they see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..recipe import Tensor, Words, register_error
from ..wgsl import F16

_OUT_OF_RANGE = "attention: position {value} is out of bounds for a cache of {size} slots"
# Finite masks as low as this mean "never", as long as the row attends to its own, newest slot.
_NEVER = {"float32": -1e38, "bfloat16": -1e38, "float16": -65000.0}


@dataclass(frozen=True)
class Rope:
    """Rotary embedding in the form ``x * cos + cat(-x[D/2:], x[:D/2]) * sin``; both broadcast to (B, 1, D)."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class Call:
    """The operands of one launch; ``heads`` query heads share a workgroup, ``tile`` keys are done at once."""

    q: Tensor
    k: Tensor | None
    v: Tensor | None
    k_cache: Tensor
    v_cache: Tensor
    out: Tensor
    position: Tensor | None
    mask: Tensor | None
    rope: Rope | None
    scale: Any
    heads: int = 1
    tile: int = 32
    chunks: int = 1

    @property
    def dim(self) -> int:
        return self.q.sizes[3]

    @property
    def groups(self) -> int:
        """Workgroups needed for one pass over the heads and batches."""
        return self.q.sizes[0] * self.q.sizes[1] // self.heads


def whole_rows(t: Tensor) -> bool:
    """Whether rows along the last dimension are whole words with nothing between their elements."""
    if t.strides[3] != 1 and t.sizes[3] > 1:
        return False
    per = t.dtype.per_word
    return per == 1 or (
        t.sizes[3] % per == 0
        and t.aligned(4)
        and all(s % per == 0 for n, s in zip(t.sizes[:3], t.strides[:3], strict=True) if n > 1)
    )


def fill_words(w: Words, call: Call) -> None:
    """The uniform words of a launch."""
    b, h, _, d = call.q.sizes
    slots = call.k_cache.sizes[2]
    w.u32("L", slots)
    w.u32("H", h)
    w.u32("repeat", h // call.k_cache.sizes[1])
    w.u32("chunks", call.chunks)
    w.u32("stats", b * h * call.chunks * d)
    w.number("scale", call.scale, "f")
    pairs: list[tuple[str, Tensor | None]] = [("q", call.q), ("kc", call.k_cache), ("vc", call.v_cache), ("o", call.out)]
    for name, t in [*pairs, ("k", call.k), ("v", call.v), ("m", call.mask)]:
        if t is not None:
            for axis, stride in zip("zhld", t.strides, strict=True):
                w.u32(f"{name}_{axis}", stride)
    if call.rope is not None:
        for name, t in (("cos", call.rope.cos), ("sin", call.rope.sin)):
            w.u32(f"{name}_z", t.strides[0])
            w.u32(f"{name}_d", t.strides[2])
    if call.position is not None:
        w.u32("error", register_error("IndexError", _OUT_OF_RANGE))
    if call.mask is not None and call.mask.dtype.is_float:
        w.f32("never", _NEVER[call.mask.dtype.name])


def store(t: Tensor, mode: str) -> str:
    """How the result is stored: ``element`` or, in whole words, the function that makes the bits."""
    if mode != "p":
        return "element"
    return "f16bits" if t.dtype is F16 else "bf16bits"
