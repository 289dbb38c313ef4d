"""Elementwise kernels: the generator of their shaders, type promotion, shapes and strides (the ops: ops/pointwise.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from .. import _C, wgsl
from ..recipe import Graph, Scalar, Tensor, Words, grid
from ..runtime import target
from ..wgsl import BOOL, F32, I64, DType, cast
from .program import Program

WORKGROUP = 128
LINEAR = "(g.y * n.x + g.x) * {wg}u + l"  # the folded grid's invocation number
MAIN = (
    "@compute @workgroup_size({wg}) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, "
    "@builtin(local_invocation_index) l: u32) {{\n"
)

Operand = Tensor | Scalar | int | float | bool


# ---------------------------------------------------------------------------------------------------- types and shapes


def dtype_of(x: Operand) -> DType:
    """The dtype a value stands for in promotion."""
    if isinstance(x, (Tensor, Scalar)):
        return x.dtype
    return BOOL if isinstance(x, bool) else I64 if isinstance(x, int) else F32


_CATEGORY = {"b": 0, "i": 1, "l": 1, "f": 2}


def result_dtype(*operands: Operand) -> DType:
    """PyTorch's result type: tensors with dimensions beat 0-dim tensors, which beat Python numbers, within a category."""
    best: list[DType | None] = [None, None, None]
    for x in operands:
        if isinstance(x, Tensor):
            rank, own = (2 if x.sizes else 1), x.dtype
        else:
            rank, own = int(isinstance(x, Scalar) and not x.wrapped), dtype_of(x)
        have = best[rank]
        best[rank] = own if have is None or have is own else wgsl.promote(have, own)
    result: DType | None = None
    for d in (best[2], best[1], best[0]):
        if d is None:
            continue
        if result is None or _CATEGORY[d.cls] > _CATEGORY[result.cls]:
            result = d
    assert result is not None
    return result


def check_castable(source: DType, target: DType) -> None:
    """Raises where PyTorch refuses to store a result of one dtype into another."""
    order = {"b": 0, "i": 1, "l": 1, "f": 2}
    if order[source.cls] > order[target.cls]:
        names = {"float32": "Float", "int64": "Long", "bool": "Bool", "int32": "Int", "float16": "Half"}
        raise RuntimeError(
            f"result type {names.get(source.name, source.name)} can't be cast to the desired output type "
            f"{names.get(target.name, target.name)}"
        )


def check_fits(value: Operand, d: DType) -> None:
    """Raises where PyTorch refuses a Python number as one of an integer dtype; unsigned ones take negatives, which wrap."""
    if d.cls not in "il" or not isinstance(value, int) or isinstance(value, bool):
        return
    info = torch.iinfo(d.torch)
    if not (info.min or -info.max) <= value <= info.max:
        raise RuntimeError(f"value cannot be converted to type {d.name} without overflow: {value}")


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape; raises RuntimeError as PyTorch words it."""
    longest = max(shapes, key=len)
    if all(s == longest or not s for s in shapes):
        return tuple(longest)
    ndim = len(longest)
    out = [1] * ndim
    for shape in shapes:
        for i, n in enumerate(shape, ndim - len(shape)):
            if n != 1 and out[i] != n:
                if out[i] != 1:
                    raise RuntimeError(
                        f"The size of tensor a ({out[i]}) must match the size of tensor b ({n}) at non-singleton "
                        f"dimension {i}"
                    )
                out[i] = n
    return tuple(out)


def dense_strides(like: Tensor, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of a result that keeps the layout of a dense, permuted input (channels last, transposed)."""
    if like.contiguous or like.sizes != sizes:
        return None
    order = sorted((i for i, n in enumerate(sizes) if n > 1), key=lambda i: (like.strides[i], sizes[i]))
    step, strides = 1, [1] * len(sizes)
    for i in order:
        if like.strides[i] != step:
            return None
        strides[i] = step
        step *= sizes[i]
    for i in range(len(sizes) - 1, -1, -1):
        if sizes[i] <= 1:
            strides[i] = step
    return tuple(strides)


def collapse(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merges adjacent dimensions that every operand walks as one; drops those of size 1."""
    return _C.collapse(sizes, strides)


# ---------------------------------------------------------------------------------------------------- the kernel


def index_code(w: Words, rank: int, names: Sequence[str], linear: str = "i", prefix: str = "") -> str:
    """WGSL that turns a linear index into one element index an operand (``x_<prefix><name>``)."""
    lines = [f"var r_{prefix} = {linear};"]
    lines += [f"var x_{prefix}{name} = 0u;" for name in names]
    for d in range(rank - 1, -1, -1):
        if d:
            size = w.expr(f"{prefix}s{d}")
            lines.append(f"{{ let c = r_{prefix} % {size}; r_{prefix} = r_{prefix} / {size};")
        else:
            lines.append(f"{{ let c = r_{prefix};")
        lines += [f"x_{prefix}{name} += c * {w.expr(f'{prefix}{name}_{d}')};" for name in names]
        lines.append("}")
    return "\n".join(lines)


def index_words(w: Words, sizes: Sequence[int], strides: Mapping[str, Sequence[int]], prefix: str = "") -> None:
    """The uniform words that ``index_code`` reads."""
    for name, n in zip(_index_names(len(sizes), prefix), sizes, strict=False):
        w.u32(name, n)
    for operand, steps in strides.items():
        for name, step in zip(_index_names(len(sizes), prefix, operand), steps, strict=False):
            w.u32(name, step)


@cache
def _index_names(rank: int, prefix: str, operand: str | None = None) -> tuple[str, ...]:
    return tuple(f"{prefix}s{d}" if operand is None else f"{prefix}{operand}_{d}" for d in range(rank))


def same_walk(a: Tensor, b: Tensor) -> bool:
    """Whether equal indices are equally far from the first element."""
    if a.sizes != b.sizes:
        return False
    return a.strides == b.strides or all(s == t for n, s, t in zip(a.sizes, a.strides, b.strides, strict=True) if n > 1)


def same_view(a: Tensor, b: Tensor) -> bool:
    """Whether equal indices are the very same elements (inputs may share a buffer at other offsets)."""
    return a.buffer == b.buffer and a.offset == b.offset and a.dtype is b.dtype and same_walk(a, b)


def may_overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two views of one buffer share elements at different positions (their offsets are in the signature)."""
    if a.buffer != b.buffer or (a.offset == b.offset and same_walk(a, b)):
        return False
    return a.offset < b.offset + b.extent and b.offset < a.offset + a.extent


def _split(out: Tensor, inputs: list[Tensor], limit: int) -> int | None:
    """The dimension to cut where one launch would touch more than a binding may cover, else None."""
    if all(t.extent * t.dtype.itemsize + 256 <= limit for t in (out, *inputs)):
        return None
    return max(
        range(out.ndim), key=lambda d: (out.sizes[d] - 1) * max(t.strides[d] * t.dtype.itemsize for t in (out, *inputs))
    )


def _defer(
    graph: Graph,
    expr: str,
    operands: Sequence[Operand],
    classes: Sequence[str],
    result_cls: str,
    out: Tensor,
    name: str,
) -> None:
    """Hands the op as a program to a graph that compiles later."""
    expanded = [x.expand(out.sizes) if isinstance(x, Tensor) else x for x in operands]
    if any(isinstance(x, Tensor) and may_overlap(out, x) for x in expanded):
        temp = graph.new(out.sizes, out.dtype)
        _defer(graph, expr, operands, classes, result_cls, temp, name)
        return _defer(graph, "{0}", [temp], [temp.dtype.cls], temp.dtype.cls, out, "copy")
    inputs = [x.dtype.cls if isinstance(x, Tensor) else c for x, c in zip(operands, classes, strict=True)]
    graph.pointwise(Program.of(expr, inputs, classes, result_cls), expanded, out, name)


def emit(
    graph: Graph,
    expr: str,
    operands: Sequence[Operand],
    classes: Sequence[str],
    result_cls: str,
    out: Tensor,
    name: str,
) -> None:
    """Computes ``out = expr`` elementwise.

    Args:
        expr: WGSL with ``{0}``, ``{1}``, … for the operands, each already converted to its class.
        operands: tensors (broadcast to ``out``) and numbers.
        classes: class of each operand inside the expression.
        result_cls: class of the expression.
        out: destination of any dtype and strides.
    """
    if out.numel == 0:
        return
    if graph.deferred:
        return _defer(graph, expr, operands, classes, result_cls, out, name)
    shape = out.sizes
    tensors = [(i, x.expand(shape)) for i, x in enumerate(operands) if isinstance(x, Tensor)]
    limit = target().limits["maxStorageBufferBindingSize"]
    if out.ref < 0 and max([out.extent, *[t.extent for _, t in tensors]]) * 8 + 256 <= limit:
        return _emit_one(graph, expr, operands, tensors, classes, result_cls, out, name)  # fresh and small: nothing to check
    if any(may_overlap(out, t) for _, t in tensors):
        temp = graph.new(out.sizes, out.dtype)
        emit(graph, expr, operands, classes, result_cls, temp, name)
        return copy_into(graph, temp, out)
    cut = _split(out, [t for _, t in tensors], limit)
    if cut is not None:
        half = out.sizes[cut] // 2
        for start, length in ((0, half), (half, out.sizes[cut] - half)):
            part = [x.expand(out.sizes).narrow(cut, start, length) if isinstance(x, Tensor) else x for x in operands]
            emit(graph, expr, part, classes, result_cls, out.narrow(cut, start, length), name)
        return
    _emit_one(graph, expr, operands, tensors, classes, result_cls, out, name)


def _emit_one(
    graph: Graph,
    expr: str,
    operands: Sequence[Operand],
    tensors: list[tuple[int, Tensor]],
    classes: Sequence[str],
    result_cls: str,
    out: Tensor,
    name: str,
) -> None:
    def arithmetic(values: list[str]) -> tuple[str, str]:
        taken = [
            cast(v, x.dtype.cls, c) if isinstance(x, Tensor) else v
            for v, x, c in zip(values, operands, classes, strict=True)
        ]
        return "", expr.format(*taken)

    _launch(graph, arithmetic, (name, expr, tuple(classes)), operands, tensors, classes, result_cls, out)


def _launch(
    graph: Graph,
    arithmetic: Callable[[list[str]], tuple[str, str]],
    key: tuple[Any, ...],
    operands: Sequence[Operand],
    tensors: list[tuple[int, Tensor]],
    number_classes: Sequence[str],
    result_cls: str,
    out: Tensor,
) -> None:
    """One launch; ``arithmetic`` turns an expression an operand into WGSL statements and the result's expression."""
    n = out.numel
    d = out.dtype
    rank, walked, flat = 0, {}, (True,) * (1 + len(tensors))
    if not (out.contiguous and all([t.contiguous for _, t in tensors])):
        sizes, strides = collapse(out.sizes, [out.strides, *[t.strides for _, t in tensors]])
        flat = tuple([not sizes or (len(sizes) == 1 and s[0] == 1) for s in strides])
        names = ["o", *[f"t{i}" for i, _ in tensors]]
        walked = {m: s for m, s, f in zip(names, strides, flat, strict=True) if not f}
        rank = len(sizes) if walked else 0
    # Shared words are written whole where this launch owns all of them, else element by element with atomics.
    whole = d.packed and flat[0] and out.aligned(4) and (n % d.per_word == 0 or graph.owns_last_word(out))
    mode = "p" if whole else "w"

    def words(w: Words) -> None:
        w.u32("n", n)
        if rank:
            index_words(w, sizes, walked)
        for i, x in enumerate(operands):
            if not isinstance(x, Tensor):
                w.number(f"v{i}", x, number_classes[i])

    def source(w: Words) -> str:
        values = []
        for i, x in enumerate(operands):
            if isinstance(x, Tensor):
                values.append(f"ld_t{i}({f'x_t{i}' if f't{i}' in walked else 'i'})")
            else:
                values.append(w.expr(f"v{i}", number_classes[i]))
        index = index_code(w, rank, list(walked)) if rank else ""
        statements, result = arithmetic(values)
        value = cast(result, result_cls, d.cls)
        body = MAIN.format(wg=WORKGROUP) + f"let k = {LINEAR.format(wg=WORKGROUP)};\n"
        if not whole:
            at = "x_o" if "o" in walked else "i"
            head = f"if (k >= {w.expr('n')}) {{ return; }}\nlet i = k;\n{index}\n"
            return body + head + f"{statements}st_o({at}, {value});\n}}"
        parts = []
        for e in range(d.per_word):
            parts.append(
                f"{{ let i = k * {d.per_word}u + {e}u;\nif (i < {w.expr('n')}) {{ {index}\n{statements}"
                f"bits = bits | ({wgsl.bits_of(d, value)} << {e * d.itemsize * 8}u); }} }}"
            )
        return (
            body
            + f"if (k * {d.per_word}u >= {w.expr('n')}) {{ return; }}\nvar bits = 0u;\n"
            + "\n".join(parts)
            + "\nst_o(k, bits);\n}"
        )

    args = [("o", out, mode), *[(f"t{i}", t, "r") for i, t in tensors]]
    kinds = tuple([isinstance(x, Tensor) for x in operands])
    static = (*key, rank, flat, kinds, result_cls)
    graph.launch("pointwise", args, words, source, grid(-(-n // d.per_word) if whole else n, WORKGROUP), static)


def emit_program(graph: Graph, program: Program, operands: Sequence[Operand], out: Tensor) -> None:
    """Like ``emit`` for a program: operands already broadcast to ``out``, none overlapping it at other positions."""
    if out.numel == 0:
        return
    tensors = [(i, x) for i, x in enumerate(operands) if isinstance(x, Tensor)]
    cut = _split(out, [t for _, t in tensors], target().limits["maxStorageBufferBindingSize"])
    if cut is not None:
        half = out.sizes[cut] // 2
        for start, length in ((0, half), (half, out.sizes[cut] - half)):
            part = [x.narrow(cut, start, length) if isinstance(x, Tensor) else x for x in operands]
            emit_program(graph, program, part, out.narrow(cut, start, length))
        return
    _launch(graph, program.emit, (program,), operands, tensors, program.inputs, program.cls, out)


def compute(
    graph: Graph,
    expr: str,
    operands: Sequence[Operand],
    classes: Sequence[str],
    result_cls: str,
    dtype: DType,
    name: str,
    shape: Sequence[int] | None = None,
) -> Tensor:
    """Like ``emit``, into the call's target where there is one, else into a new tensor (of the inputs' dense layout)."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    sizes = tuple(shape) if shape is not None else broadcast_shapes(*(t.sizes for t in tensors), ())
    target = graph.target
    if target is not None and target.sizes == sizes:
        check_castable(dtype, target.dtype)
        out = target
    else:
        strides = None
        for t in tensors:
            strides = strides or dense_strides(t, sizes)
        out = graph.new(sizes, dtype, strides)
    emit(graph, expr, operands, classes, result_cls, out, name)
    return out


def copy_into(graph: Graph, src: Tensor, dst: Tensor) -> None:
    """``dst[...] = src`` with broadcasting and conversion; bits are kept where the dtypes agree."""
    emit(graph, "{0}", [src], [src.dtype.cls], src.dtype.cls, dst, "copy")


def contiguous(graph: Graph, t: Tensor) -> Tensor:
    """``t`` itself if it is contiguous, else a fresh copy."""
    if t.contiguous:
        return t
    out = graph.new(t.sizes, t.dtype)
    copy_into(graph, t, out)
    return out


def converted(graph: Graph, t: Tensor, dtype: DType) -> Tensor:
    """``t`` in another dtype."""
    if t.dtype is dtype:
        return t
    out = graph.new(t.sizes, dtype)
    copy_into(graph, t, out)
    return out


def private_target(graph: Graph) -> Tensor | None:
    """Takes the call's target away while a lowering makes intermediate tensors."""
    target, graph.target = graph.target, None
    return target


def float_dtype(d: DType) -> DType:
    """The dtype of float results of an op on ``d``: itself, or float32 for integers."""
    return d if d.is_float else F32
