"""Row kernels: softmax, log-softmax, layer norm, RMS norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..kernels.pointwise import contiguous, emit
from ..kernels.reduction import normal_dims
from ..recipe import Graph, Tensor, Words, grid, product
from ..registry import lower
from ..wgsl import F32, DType

WORKGROUP = 128
_HEAD = (
    "@compute @workgroup_size({wg}) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, "
    "@builtin(local_invocation_index) l: u32) {{\nlet row = g.y * n.x + g.x;\n"
)
_SHARED = "var<workgroup> part: array<f32, {wg}>;\n"


def _fold(value: str, merge: str, into: str, first: str, count: str) -> str:
    """Every invocation gathers ``value`` over its share of the row, then the workgroup merges; ends in a barrier."""
    return (
        f"var {into} = {first};\nfor (var i = l; i < {count}; i += {WORKGROUP}u) {{ let v = {value}; {into} = "
        f"{merge.format(into, 'v')}; }}\npart[l] = {into};\nworkgroupBarrier();\n"
        f"for (var s = {WORKGROUP // 2}u; s > 0u; s = s / 2u) {{\n"
        f"if (l < s) {{ part[l] = {merge.format('part[l]', 'part[l + s]')}; }}\n"
        f"workgroupBarrier(); }}\n{into} = part[0];\nworkgroupBarrier();\n"
    )


def _softmax(graph: Graph, x: Tensor, dim: int, dtype: DType, log: bool) -> Tensor:
    out = graph.new(x.sizes, dtype)
    if x.numel == 0:
        return out
    if x.ndim == 0:
        emit(graph, "select({1}, {0}, isnan_({0}))", [x, 0.0 if log else 1.0], ["f", "f"], "f", out, "softmax0")
        return out
    (axis,) = normal_dims(x.ndim, dim)
    x = contiguous(graph, x)
    inner = product(x.sizes[axis + 1 :])
    count = x.sizes[axis]
    _softmax_launch(graph, x, out, x.numel // count, count, inner, log)
    return out


def _softmax_launch(graph: Graph, x: Tensor, out: Tensor, rows: int, count: int, inner: int, log: bool) -> None:
    def words(w: Words) -> None:
        w.u32("rows", rows)
        w.u32("count", count)
        w.u32("inner", inner)

    def source(w: Words) -> str:
        at = f"base + i * {w.inner}"
        result = f"ld_x({at}) - m - log_(s)" if log else f"exp_(ld_x({at}) - m) / s"
        return (
            _SHARED.format(wg=WORKGROUP)
            + _HEAD.format(wg=WORKGROUP)
            + f"if (row >= {w.rows}) {{ return; }}\nlet base = row / {w.inner} * {w.count} * {w.inner} + row % {w.inner};\n"
            + _fold(f"ld_x({at})", "fmaximum({0}, {1})", "m", "-inf_()", w.count)
            + _fold("exp_(v_ - m)".replace("v_", f"ld_x({at})"), "({0} + {1})", "s", "0.0", w.count)
            + f"for (var i = l; i < {w.count}; i += {WORKGROUP}u) {{ st_o({at}, {result}); }}\n}}"
        )

    graph.launch("softmax", [("x", x, "r"), ("o", out, "w")], words, source, grid(rows, 1), log)


@lower("_softmax")
def _softmax_op(graph: Graph, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(graph, x, dim, F32 if half_to_float else x.dtype, False)


@lower("_log_softmax")
def _log_softmax_op(graph: Graph, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(graph, x, dim, F32 if half_to_float else x.dtype, True)


def _check_shape(name: str, t: Tensor | None, shape: Sequence[int]) -> None:
    if t is not None and list(t.sizes) != list(shape):
        raise RuntimeError(
            f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape {list(t.sizes)} and "
            f"normalized_shape = {list(shape)}"
        )


@lower("native_layer_norm", results=3)
def _layer_norm(
    graph: Graph, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: Any
) -> list[Tensor]:
    lead = x.ndim - len(shape)
    if not shape:
        raise RuntimeError("Expected normalized_shape to be at least 1-dimensional, got []")
    _check_shape("weight", weight, shape)
    _check_shape("bias", bias, shape)
    if list(x.sizes[lead:]) != list(shape):
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], "
            "but got input of "
            f"size{list(x.sizes)}"
        )
    count = product(shape)
    rows = product(x.sizes[:lead])
    stats = (*x.sizes[:lead], *([1] * len(shape)))
    out, mean, rstd = graph.new(x.sizes, x.dtype), graph.new(stats, F32), graph.new(stats, F32)
    if x.numel == 0:
        return [out, mean, rstd]
    x = contiguous(graph, x)
    extras = [(n, contiguous(graph, t)) for n, t in (("weight", weight), ("bias", bias)) if t is not None]

    def words(w: Words) -> None:
        w.u32("rows", rows)
        w.u32("count", count)
        w.number("eps", eps, "f")

    def source(w: Words) -> str:
        scaled = "(ld_x(base + i) - mean) * rstd" + (" * ld_weight(i)" if weight is not None else "")
        scaled += " + ld_bias(i)" if bias is not None else ""
        return (
            _SHARED.format(wg=WORKGROUP)
            + _HEAD.format(wg=WORKGROUP)
            + f"if (row >= {w.rows}) {{ return; }}\nlet base = row * {w.count};\n"
            + _fold("ld_x(base + i)", "({0} + {1})", "total", "0.0", w.count)
            + f"let mean = quotient_(total, f32({w.count}));\n"
            + _fold("(ld_x(base + i) - mean) * (ld_x(base + i) - mean)", "({0} + {1})", "m2", "0.0", w.count)
            + f"let rstd = 1.0 / sqrt(m2 / f32({w.count}) + {w.expr('eps', 'f')});\n"
            + f"for (var i = l; i < {w.count}; i += {WORKGROUP}u) {{ st_o(base + i, {scaled}); }}\n"
            + "if (l == 0u) { st_mean(row, mean); st_rstd(row, rstd); }\n}"
        )

    args = [("x", x, "r"), ("o", out, "w"), ("mean", mean, "w"), ("rstd", rstd, "w")] + [(n, t, "r") for n, t in extras]
    graph.launch("layer_norm", args, words, source, grid(rows, 1), tuple(n for n, _ in extras))
    return [out, mean, rstd]


@lower("_fused_rms_norm", results=2)
def _rms_norm(graph: Graph, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: Any = None) -> list[Tensor]:
    import torch

    lead = x.ndim - len(shape)
    _check_shape("weight", weight, shape)
    if list(x.sizes[lead:]) != list(shape):
        raise RuntimeError(f"Given normalized_shape={list(shape)}, expected input with that shape at its end, got {x}")
    count, rows = product(shape), product(x.sizes[:lead])
    out, rstd = graph.new(x.sizes, x.dtype), graph.new((*x.sizes[:lead], *([1] * len(shape))), F32)
    if x.numel == 0:
        return [out, rstd]
    x = contiguous(graph, x)
    weight = None if weight is None else contiguous(graph, weight)
    epsilon = torch.finfo(x.dtype.torch).eps if eps is None else eps

    def words(w: Words) -> None:
        w.u32("rows", rows)
        w.u32("count", count)
        w.number("eps", epsilon, "f")

    def source(w: Words) -> str:
        scaled = "ld_x(base + i) * rstd" + (" * ld_weight(i)" if weight is not None else "")
        return (
            _SHARED.format(wg=WORKGROUP)
            + _HEAD.format(wg=WORKGROUP)
            + f"if (row >= {w.rows}) {{ return; }}\nlet base = row * {w.count};\n"
            + _fold("ld_x(base + i) * ld_x(base + i)", "({0} + {1})", "total", "0.0", w.count)
            + f"let rstd = 1.0 / sqrt(total / f32({w.count}) + {w.expr('eps', 'f')});\n"
            + f"for (var i = l; i < {w.count}; i += {WORKGROUP}u) {{ st_o(base + i, {scaled}); }}\n"
            + "if (l == 0u) { st_rstd(row, rstd); }\n}"
        )

    args = [("x", x, "r"), ("o", out, "w"), ("rstd", rstd, "w")] + ([("weight", weight, "r")] if weight is not None else [])
    graph.launch("rms_norm", args, words, source, grid(rows, 1), weight is not None)
    return [out, rstd]
