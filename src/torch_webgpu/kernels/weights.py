"""Weights of matrix-vector products: dense, int8 and int4, and what a kernel asks of them."""

from __future__ import annotations

from dataclasses import dataclass

from ..recipe import Tensor
from ..wgsl import BF16, F16, F32, I8, I32

INT4_GROUP = 32  # elements that share a scale


@dataclass(frozen=True)
class Dense:
    """Weights [N, K], rows contiguous, float32, float16 or bfloat16."""

    weight: Tensor


@dataclass(frozen=True)
class Int8:
    """``w = q * scale``: q int8 [N, K]; scale float16 or float32 [N, G], one for each K / G elements of a row."""

    weight: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Int4:
    """``w = q * scale + minimum``, or ``(q - 8) * scale`` without one.

    Element k of a row is the nibble at bit ``4 * (k % 8)`` of word ``k // 8``: weight int32 [N, K / 8]. Scale and minimum
    (float16 or float32) are [N, K / 32].
    """

    weight: Tensor
    scale: Tensor
    minimum: Tensor | None = None


Weight = Dense | Int8 | Int4


def kind_of(weight: Weight) -> str:
    """What the table of choices calls these weights: a dtype, ``int8`` or ``int4``."""
    if isinstance(weight, Dense):
        return weight.weight.dtype.name
    return "int8" if isinstance(weight, Int8) else "int4"


def tensors_of(weight: Weight) -> list[tuple[str, Tensor]]:
    """Operands of a stream: w, f (scale) and h (minimum)."""
    found = [("w", weight.weight)]
    if not isinstance(weight, Dense):
        found.append(("f", weight.scale))
    if isinstance(weight, Int4) and weight.minimum is not None:
        found.append(("h", weight.minimum))
    return found


def narrow_rows(weight: Weight, start: int, length: int) -> Weight:
    if isinstance(weight, Dense):
        return Dense(weight.weight.narrow(0, start, length))
    w, scale = weight.weight.narrow(0, start, length), weight.scale.narrow(0, start, length)
    if isinstance(weight, Int8):
        return Int8(w, scale)
    return Int4(w, scale, None if weight.minimum is None else weight.minimum.narrow(0, start, length))


def fault_of(weight: Weight, n: int, k: int) -> str:
    """Why the kernel cannot read these weights, or an empty string."""
    w = weight.weight
    wanted = {Dense: (F32, F16, BF16), Int8: (I8,), Int4: (I32,)}[type(weight)]
    if w.dtype not in wanted:
        return f"weights of {type(weight).__name__} are {' or '.join(d.name for d in wanted)}, got {w}"
    if isinstance(weight, Int4) and k % INT4_GROUP:
        return f"int4 weights need K to be a multiple of {INT4_GROUP}, got {k}"
    columns = k // 8 if isinstance(weight, Int4) else k
    if w.sizes != (n, columns):
        return f"weights of shape {[n, columns]} are needed, got {w}"
    if columns > 1 and w.strides[1] != 1:
        return f"rows of the weights must be contiguous, got strides {list(w.strides)}"
    for name, t in tensors_of(weight)[1:]:
        groups = t.sizes[1] if t.ndim == 2 else 0
        if t.dtype not in (F16, F32) or t.ndim != 2 or t.sizes[0] != n or groups < 1 or k % groups:
            return f"{'scale' if name == 'f' else 'minimum'} must be float16 or float32 [{n}, groups], got {t}"
        if isinstance(weight, Int4) and groups != k // INT4_GROUP:
            return f"int4 weights have a scale for each {INT4_GROUP} elements, got {t} for K = {k}"
        if groups > 1 and t.strides[1] != 1:
            return f"rows of scales must be contiguous, got strides {list(t.strides)}"
    return ""
