"""Copies on the device and concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, copy_into, result_dtype, same_view
from ..recipe import Graph, Tensor, Words, grid, product
from ..registry import lower
from ..runtime import target
from ..wgsl import I32


@lower("webgpu::copy_")
def _copy(graph: Graph, dst: Tensor, src: Tensor) -> Tensor:
    copy_into(graph, src, dst)
    return dst


@lower("cat", inplace=False)
def _cat(graph: Graph, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    kept = [t for t in tensors if t.sizes != (0,)]
    dtype = result_dtype(*tensors)
    if not kept:
        return graph.new(tensors[0].sizes, dtype)
    ndim = kept[0].ndim
    if any(t.ndim == 0 for t in kept):
        raise RuntimeError("zero-dimensional tensor cannot be concatenated")
    d = dim + ndim if dim < 0 else dim
    if not 0 <= d < ndim:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})")
    for t in kept:
        if t.ndim != ndim or any(a != b for i, (a, b) in enumerate(zip(t.sizes, kept[0].sizes, strict=True)) if i != d):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {d}. Expected {list(kept[0].sizes)} but got "
                f"{list(t.sizes)}"
            )
    sizes = list(kept[0].sizes)
    sizes[d] = sum(t.sizes[d] for t in kept)
    out = graph.new(sizes, dtype)
    if _repeated(graph, kept, out, d) or _joined_rows(graph, [t for t in kept if t.numel], out, d):
        return out
    start = 0
    for t in kept:
        if t.numel:
            copy_into(graph, t, out.narrow(d, start, t.sizes[d]))
        start += t.sizes[d]
    return out


def _repeated(graph: Graph, tensors: Sequence[Tensor], out: Tensor, dim: int) -> bool:
    """One tensor several times over, as elementwise work; False where they are not one."""
    first = tensors[0]
    if not all(t is first or same_view(t, first) for t in tensors):
        return False
    split = (*first.sizes[:dim], len(tensors), *first.sizes[dim:])
    strides = (*out.strides[:dim], out.strides[dim] * first.sizes[dim], *out.strides[dim:])
    copy_into(graph, first.view(split, (*first.strides[:dim], 0, *first.strides[dim:])), out.view(split, strides))
    return True


MOST_JOINED = 6  # with the result, the bindings every adapter has


def as_words(t: Tensor, row: int) -> tuple[Tensor, int] | None:
    """A contiguous tensor of rows seen as 32-bit words, with the row length in words; None where rows share words."""
    bytes_ = row * t.dtype.itemsize
    if not t.contiguous or bytes_ % 4 or not t.aligned(4):
        return None
    size = t.dtype.itemsize
    words = Tensor(t.ref, t.buffer, I32, (t.numel * size // 4,), (1,), t.delta * size // 4, t.offset * size // 4)
    return words, bytes_ // 4


def _joined_rows(graph: Graph, inputs: Sequence[Tensor], out: Tensor, dim: int) -> bool:
    """Concatenation in one launch, as words: contiguous inputs of the result's dtype. False where that does not hold."""
    if not 2 <= len(inputs) <= MOST_JOINED or any(t.dtype is not out.dtype for t in inputs):
        return False
    if out.extent * out.dtype.itemsize + 256 > target().limits["maxStorageBufferBindingSize"]:
        return False
    found = [as_words(t, product(t.sizes[dim:])) for t in (*inputs, out)]
    parts = [f for f in found if f is not None]
    if len(parts) != len(found) or any(t.ref >= 0 and t.delta for t, _ in parts):
        return False
    n = parts[-1][0].sizes[0]

    def words(w: Words) -> None:
        w.u32("n", n)
        for k, (_, row) in enumerate(parts):
            w.u32(f"row{k}", row)

    def source(w: Words) -> str:
        lines = [
            MAIN.format(wg=WORKGROUP),
            f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}",
            f"let r = i / {w.expr(f'row{len(inputs)}')};\nvar c = i % {w.expr(f'row{len(inputs)}')};",
        ]
        for k in range(len(inputs)):
            row = w.expr(f"row{k}")
            lines.append(f"if (c < {row}) {{ st_o(i, ld_t{k}(r * {row} + c)); return; }}\nc -= {row};")
        return "\n".join([*lines, "}"])

    args = [("o", parts[-1][0], "w")] + [(f"t{k}", t, "r") for k, (t, _) in enumerate(parts[:-1])]
    graph.launch("cat", args, words, source, grid(n, WORKGROUP), len(inputs))
    return True
