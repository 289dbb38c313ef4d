"""Products with quantised weights, and rows of them: the ops, their reference in plain PyTorch, their kernels.

8 bits: ``weight`` int8 [N, K], ``scale`` float32 or float16 [N, G] with K a multiple of G; element (n, k) is
``weight[n, k] * scale[n, k // (K / G)]``. 4 bits: ``weight`` int32 [N, K / 8], element k in bits 4 (k % 8) of word k // 8,
unsigned; ``scale`` and ``minimum`` float16 [N, K / 32]; element (n, k) is ``nibble * scale + minimum``, and
``(nibble - 8) * scale`` without a minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812

from .. import wgsl
from ..kernels import render
from ..kernels.matvec import Int4, Int8, matvec, supports
from ..kernels.pointwise import WORKGROUP, contiguous, copy_into
from ..kernels.program import IDENTITY, Program, Step
from ..recipe import Graph, Tensor, Words, grid, product, register_error, spans
from ..registry import lower
from ..runtime import target
from ..wgsl import F32
from .matmul import product3

GROUP = 32  # elements of a row that share a scale in 4 bits
PER_WORD = 8  # elements of 4 bits in an int32
MOST_DEQUANTISED = 64 << 20  # bytes of dequantised weights at a time
PER_INVOCATION = 8
_FLOATS = ("float32", "float16", "bfloat16")
_INDEX_ERROR = "index {{value}} is out of bounds for dimension with size {{size}} in {op}"

_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define("linear_int8(Tensor x, Tensor weight, Tensor scale, Tensor? bias) -> Tensor")
_library.define("linear_int4(Tensor x, Tensor weight, Tensor scale, Tensor? minimum, Tensor? bias) -> Tensor")
_library.define("embedding_int8(Tensor indices, Tensor weight, Tensor scale, ScalarType dtype) -> Tensor")
_library.define("embedding_int4(Tensor indices, Tensor weight, Tensor scale, Tensor? minimum, ScalarType dtype) -> Tensor")


# ---------------------------------------------------------------------------------------------------- what must hold


def _sizes(t: torch.Tensor | Tensor) -> tuple[int, ...]:
    return t.sizes if isinstance(t, Tensor) else tuple(t.shape)


def _dtype(t: torch.Tensor | Tensor) -> str:
    return t.dtype.name if isinstance(t, Tensor) else str(t.dtype).removeprefix("torch.")


def _need(op: str, what: str, t: torch.Tensor | Tensor, sizes: tuple[int, ...], *dtypes: str) -> None:
    if _sizes(t) != sizes or _dtype(t) not in dtypes:
        raise RuntimeError(
            f"{op}: {what} must have shape {list(sizes)} and dtype {' or '.join(dtypes)}, "
            f"got {list(_sizes(t))} and {_dtype(t)}"
        )


def check_weight(op: str, bits: int, weight: Any, scale: Any, minimum: Any = None) -> tuple[int, int]:
    """Rows and columns (N, K) of a quantised weight; raises RuntimeError where its parts do not fit together."""
    if len(_sizes(weight)) != 2 or len(_sizes(scale)) != 2:
        raise RuntimeError(f"{op}: weight and scale must be matrices, got {list(_sizes(weight))} and {list(_sizes(scale))}")
    n, words = _sizes(weight)
    if bits == 8:
        _need(op, "weight", weight, (n, words), "int8")
        groups = _sizes(scale)[1]
        if words == 0 or groups == 0 or words % groups:
            raise RuntimeError(
                f"{op}: {words} columns of the weight cannot be shared out among {groups} scales a row; the number of "
                "columns must be a positive multiple of it"
            )
        _need(op, "scale", scale, (n, groups), "float32", "float16")
        return n, words
    _need(op, "weight", weight, (n, words), "int32")
    k = words * PER_WORD
    if k == 0 or k % GROUP:
        raise RuntimeError(f"{op}: {k} columns; weights of 4 bits need a positive multiple of {GROUP} (or use 8 bits)")
    _need(op, "scale", scale, (n, k // GROUP), "float16")
    if minimum is not None:
        _need(op, "minimum", minimum, (n, k // GROUP), "float16")
    return n, k


def _check_linear(op: str, bits: int, x: Any, weight: Any, scale: Any, minimum: Any, bias: Any) -> tuple[int, int]:
    n, k = check_weight(op, bits, weight, scale, minimum)
    if not _sizes(x) or _sizes(x)[-1] != k or _dtype(x) not in _FLOATS:
        raise RuntimeError(
            f"{op}: x must have {k} columns, as the weight of shape [{n}, {k}], and dtype {' or '.join(_FLOATS)}; "
            f"got {list(_sizes(x))} and {_dtype(x)}"
        )
    if bias is not None:
        _need(op, "bias", bias, (n,), _dtype(x))
    return n, k


def _check_embedding(op: str, bits: int, indices: Any, weight: Any, scale: Any, minimum: Any, dtype: Any) -> tuple[int, int]:
    if _dtype(indices) not in ("int64", "int32"):
        raise RuntimeError(f"{op}: indices must be int64 or int32, got {_dtype(indices)}")
    name = dtype.name if isinstance(dtype, wgsl.DType) else str(dtype).removeprefix("torch.")
    if name not in _FLOATS:
        raise RuntimeError(f"{op}: the result's dtype must be {' or '.join(_FLOATS)}, got {name}")
    return check_weight(op, bits, weight, scale, minimum)


# ---------------------------------------------------------------------------------------------------- reference


def dequantise_int8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Float32 [N, K] of int8 weights [N, K] and their scales [N, G]."""
    n, k = weight.shape
    groups = scale.shape[1]
    return (weight.float().reshape(n, groups, k // groups) * scale.float().unsqueeze(-1)).view(n, k)


def dequantise_int4(weight: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor | None) -> torch.Tensor:
    """Float32 [N, K] of packed weights int32 [N, K / 8], their scales and minima [N, K / 32]."""
    n, words = weight.shape
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=weight.device)
    nibbles = ((weight.unsqueeze(-1) >> shifts) & 15).float().reshape(n, scale.shape[1], GROUP)
    scales = scale.float().unsqueeze(-1)
    values = (nibbles - 8) * scales if minimum is None else nibbles * scales + minimum.float().unsqueeze(-1)
    return values.view(n, words * PER_WORD)


Maybe = torch.Tensor | None


def _linear_int8(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: Maybe) -> torch.Tensor:
    _check_linear("linear_int8", 8, x, weight, scale, None, bias)
    return F.linear(x, dequantise_int8(weight, scale).to(x.dtype), bias)


def _linear_int4(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, minimum: Maybe, bias: Maybe) -> torch.Tensor:
    _check_linear("linear_int4", 4, x, weight, scale, minimum, bias)
    return F.linear(x, dequantise_int4(weight, scale, minimum).to(x.dtype), bias)


def _select(op: str, indices: torch.Tensor, *tables: Maybe) -> list[Maybe]:
    """The rows that the indices name, of each table; raises IndexError for one out of range."""
    flat = indices.reshape(-1).long()
    assert tables[0] is not None
    size = tables[0].shape[0]
    wrong = flat[(flat < 0) | (flat >= size)]
    if wrong.numel():
        raise IndexError(_INDEX_ERROR.format(op=op).format(value=int(wrong[0]), size=size))
    return [None if t is None else t[flat] for t in tables]


def _embedding_int8(indices: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    _, columns = _check_embedding("embedding_int8", 8, indices, weight, scale, None, dtype)
    rows, scales = _select("embedding_int8", indices, weight, scale)
    assert rows is not None and scales is not None
    return dequantise_int8(rows, scales).to(dtype).view(*indices.shape, columns)


def _embedding_int4(
    indices: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, minimum: Maybe, dtype: torch.dtype
) -> torch.Tensor:
    _, columns = _check_embedding("embedding_int4", 4, indices, weight, scale, minimum, dtype)
    rows, scales, minima = _select("embedding_int4", indices, weight, scale, minimum)
    assert rows is not None and scales is not None
    return dequantise_int4(rows, scales, minima).to(dtype).view(*indices.shape, columns)


def _fake_linear_int8(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: Maybe) -> torch.Tensor:
    n, _ = _check_linear("linear_int8", 8, x, weight, scale, None, bias)
    return x.new_empty((*x.shape[:-1], n))


def _fake_linear_int4(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, minimum: Maybe, bias: Maybe
) -> torch.Tensor:
    n, _ = _check_linear("linear_int4", 4, x, weight, scale, minimum, bias)
    return x.new_empty((*x.shape[:-1], n))


def _fake_embedding_int8(
    indices: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    _, k = _check_embedding("embedding_int8", 8, indices, weight, scale, None, dtype)
    return indices.new_empty((*indices.shape, k), dtype=dtype)


def _fake_embedding_int4(
    indices: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, minimum: Maybe, dtype: torch.dtype
) -> torch.Tensor:
    _, k = _check_embedding("embedding_int4", 4, indices, weight, scale, minimum, dtype)
    return indices.new_empty((*indices.shape, k), dtype=dtype)


def _no_gradient(_context: Any, *_gradients: Any) -> NoReturn:
    raise RuntimeError(
        "The weights are quantised and nothing can be differentiated through them: dequantise the model to train it "
        "(QuantisedLinear.dequantise), or run it under torch.no_grad()."
    )


def _register() -> None:
    for name, reference, fake in (
        ("linear_int8", _linear_int8, _fake_linear_int8),
        ("linear_int4", _linear_int4, _fake_linear_int4),
        ("embedding_int8", _embedding_int8, _fake_embedding_int8),
        ("embedding_int4", _embedding_int4, _fake_embedding_int4),
    ):
        _library.impl(name, reference, "CPU")
        torch.library.register_fake(f"webgpu::{name}", fake, lib=_library)
        torch.library.register_autograd(f"webgpu::{name}", _no_gradient, lib=_library)


_register()


# ---------------------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class Quantised:
    """A quantised matrix [n, k] as kernels see it; the parts' rows may lie apart, their columns do not."""

    bits: int
    weight: Tensor
    scale: Tensor
    minimum: Tensor | None
    n: int
    k: int

    @staticmethod
    def of(
        graph: Graph, bits: int, sizes: tuple[int, int], weight: Tensor, scale: Tensor, minimum: Tensor | None
    ) -> Quantised:
        """The matrix with its columns side by side, copied where they are not."""

        def side_by_side(t: Tensor) -> Tensor:
            return t if t.strides[1] == 1 or t.sizes[1] == 1 else contiguous(graph, t)

        offsets = None if minimum is None else side_by_side(minimum)
        return Quantised(bits, side_by_side(weight), side_by_side(scale), offsets, *sizes)

    def narrow(self, start: int, length: int) -> Quantised:
        """Some of the rows."""
        minimum = None if self.minimum is None else self.minimum.narrow(0, start, length)
        weight, scale = (t.narrow(0, start, length) for t in (self.weight, self.scale))
        return Quantised(self.bits, weight, scale, minimum, length, self.k)

    @property
    def row_bytes(self) -> int:
        """The most bytes between two rows of any part."""
        parts = (self.weight, self.scale, self.minimum)
        return max(t.strides[0] * t.dtype.itemsize for t in parts if t is not None)


def _rows(graph: Graph, q: Quantised, out: Tensor, indices: Tensor | None = None, low: int = 0, size: int = 0) -> None:
    """Fills ``out`` [R, K] (contiguous) with the rows of ``q``, or with those named by ``indices`` [R] less ``low``.

    Rows named outside of ``q`` but below ``size`` are left alone; from there on an index is an error.
    """
    n = out.numel
    grouped = q.scale.sizes[1] > 1
    parts = [("o", out, "p" if out.dtype.packed else "w"), ("q", q.weight, "r"), ("s", q.scale, "r")]
    if q.minimum is not None:
        parts.append(("m", q.minimum, "r"))
    if indices is not None:
        parts += [("i", indices, "r"), ("e", graph.error_tensor(), "a")]

    def words(w: Words) -> None:
        w.u32("n", n)
        w.u32("K", q.k)
        w.u32("group", q.k // q.scale.sizes[1])
        w.u32("length", q.n if indices is not None else out.sizes[0])
        for name, t in (("q", q.weight), ("s", q.scale), ("m", q.minimum)):
            w.u32(name + "_row", t.strides[0] if t is not None else 0)
        if indices is not None:
            w.u32("low", low)
            w.u32("size", size)
            w.u32("error", register_error("IndexError", _INDEX_ERROR.format(op=graph.op)))

    def source(w: Words) -> str:
        return render(
            "dequantise",
            w=w,
            workgroup=WORKGROUP,
            per=PER_INVOCATION,
            bits=q.bits,
            minimum=q.minimum is not None,
            grouped=grouped,
            indexed=indices is not None,
            index=wgsl.cast("ld_i(r)", indices.dtype.cls, "l") if indices is not None else "",
            per_word=out.dtype.per_word,
            bits_of_v=wgsl.bits_of(out.dtype, "v"),
        )

    static = (q.bits, q.minimum is not None, grouped, indices is not None)
    graph.launch("dequantise", parts, words, source, grid(-(-n // PER_INVOCATION), WORKGROUP), static)


def _most_rows(row_bytes: int, most: int = 1 << 62) -> int:
    """Rows whose bytes fit in a binding (and in ``most``), a multiple of eight where there are as many."""
    limit = min(target().limits["maxStorageBufferBindingSize"] - 512, most)  # both ends of a binding are rounded to 256
    rows = max(limit // max(row_bytes, 1), 1)
    return rows // 8 * 8 if rows >= 8 else rows


def _product(graph: Graph, x: Tensor, q: Quantised, bias: Tensor | None, out: Tensor) -> None:
    """Any number of rows: some rows of the weights at a time are dequantised into one temporary and multiplied.

    Args:
        x: [M, K], contiguous.
        out: [M, N], of x's dtype.
    """
    m = x.sizes[0]
    a, o = x.reshape((1, m, q.k)), out.reshape((1, m, q.n))
    step = min(_most_rows(max(q.k * x.dtype.itemsize, q.row_bytes), MOST_DEQUANTISED), q.n)
    values = graph.new((step, q.k), x.dtype)
    for start, length in spans(q.n, step):
        part = values.narrow(0, 0, length)
        _rows(graph, q.narrow(start, length), part)
        b = part.view((1, q.k, length), (0, 1, q.k))
        c = bias.narrow(0, start, length).expand((1, m, length)) if bias is not None else None
        product3(graph, a, b, o.narrow(2, start, length), c, 1, 1)


_PLUS_BIAS = Program(("f", "f"), (Step("({0} + {1})", (0, 1), ("f", "f"), "f"),))


def _linear(
    graph: Graph, bits: int, x: Tensor, weight: Tensor, scale: Tensor, minimum: Tensor | None, bias: Tensor | None
) -> Tensor:
    n, k = _check_linear(graph.op, bits, x, weight, scale, minimum, bias)
    out = graph.new((*x.sizes[:-1], n), x.dtype)
    if out.numel == 0:
        return out
    q = Quantised.of(graph, bits, (n, k), weight, scale, minimum)
    rows = product(x.sizes[:-1])
    a, o = contiguous(graph, x).reshape((rows, k)), out.reshape((rows, n))
    operand = Int8(q.weight, q.scale) if bits == 8 else Int4(q.weight, q.scale, q.minimum)
    extras = [] if bias is None else [bias]
    if supports(a, [operand], o, extras):
        matvec(graph, a, [operand], o, program=IDENTITY if bias is None else _PLUS_BIAS, extras=extras)
    else:
        _product(graph, a, q, bias, o)
    return out


def _embedding(
    graph: Graph, bits: int, indices: Tensor, weight: Tensor, scale: Tensor, minimum: Tensor | None, dtype: int
) -> Tensor:
    kind = wgsl.DTYPES[dtype]
    n, k = _check_embedding(graph.op, bits, indices, weight, scale, minimum, kind)
    out = graph.new((*indices.sizes, k), kind)
    if out.numel == 0:
        return out
    q = Quantised.of(graph, bits, (n, k), weight, scale, minimum)
    window = _most_rows(q.row_bytes)
    if window < n and kind.packed and k % kind.per_word:  # a word would be shared by rows that two launches write
        exact = _embedding(graph, bits, indices, weight, scale, minimum, F32.code)
        copy_into(graph, exact, out)
        return out
    flat = contiguous(graph, indices).reshape((indices.numel,))
    rows = out.reshape((indices.numel, k))
    step = _most_rows(k * kind.itemsize)
    for first, count in spans(indices.numel, step):
        part, named = rows.narrow(0, first, count), flat.narrow(0, first, count)
        for low in range(0, max(n, 1), window):
            _rows(graph, q.narrow(low, min(window, n - low)), part, named, low, n)
    return out


@lower("webgpu::linear_int8")
def _lower_linear_int8(graph: Graph, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return _linear(graph, 8, x, weight, scale, None, bias)


@lower("webgpu::linear_int4")
def _lower_linear_int4(
    graph: Graph, x: Tensor, weight: Tensor, scale: Tensor, minimum: Tensor | None, bias: Tensor | None
) -> Tensor:
    return _linear(graph, 4, x, weight, scale, minimum, bias)


@lower("webgpu::embedding_int8")
def _lower_embedding_int8(graph: Graph, indices: Tensor, weight: Tensor, scale: Tensor, dtype: int) -> Tensor:
    return _embedding(graph, 8, indices, weight, scale, None, dtype)


@lower("webgpu::embedding_int4")
def _lower_embedding_int4(
    graph: Graph, indices: Tensor, weight: Tensor, scale: Tensor, minimum: Tensor | None, dtype: int
) -> Tensor:
    return _embedding(graph, 4, indices, weight, scale, minimum, dtype)
