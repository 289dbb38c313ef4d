"""Batch and group normalisation, forward and backward, and sums over all dimensions but the channels'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import wgsl
from ..kernels.pointwise import MAIN, collapse, contiguous, converted, emit, index_code, index_words
from ..recipe import Graph, Tensor, Words, grid, product
from ..registry import lower
from ..wgsl import F32, DType
from .creation import fill
from .gather import gather

INVOCATIONS = 256

# Welford's update and Chan's merge (Chan, Golub, LeVeque 1979): x mean, y sum of squared deviations, z count.
_MOMENTS = """
fn put_(a: vec3<f32>, v: f32) -> vec3<f32> {
  let n = a.z + 1.0; let d = v - a.x; let m = a.x + d / n;
  return vec3<f32>(m, a.y + d * (v - m), n);
}
fn join_(a: vec3<f32>, b: vec3<f32>) -> vec3<f32> {
  if (b.z == 0.0) { return a; }
  if (a.z == 0.0) { return b; }
  let n = a.z + b.z; let d = b.x - a.x;
  return vec3<f32>(a.x + d * (b.z / n), a.y + b.y + d * d * (a.z * b.z / n), n);
}
"""


def _row_loop(w: Words, rank: int, names: Sequence[str], state: str, put: str, merge: str, finish: str) -> str:
    """One workgroup a row: invocations gather with ``put`` into ``a``, pairs are merged, ``finish`` sees ``a``."""
    return (
        f"var<workgroup> part_: array<{state}, {INVOCATIONS}>;\n"
        + MAIN.format(wg=INVOCATIONS)
        + f"let o = g.y * n.x + g.x;\nif (o >= {w.rows}) {{ return; }}\nvar a: {state};\n"
        + f"for (var r = l; r < {w.count}; r += {INVOCATIONS}u) {{\n{index_code(w, rank, names, 'r')}\n{put}\n}}\n"
        + f"part_[l] = a;\nworkgroupBarrier();\nfor (var s = {INVOCATIONS // 2}u; s > 0u; s = s / 2u) {{\n"
        + f"if (l < s) {{ let b = part_[l + s]; a = {merge}; part_[l] = a; }}\nworkgroupBarrier();\n}}\n"
        + f"if (l == 0u) {{\n{finish}\n}}\n}}"
    )


def _inner(tensors: dict[str, Tensor]) -> tuple[list[int], dict[str, Sequence[int]]]:
    """Sizes and strides of everything but dimension 1, merged where possible."""
    first = next(iter(tensors.values()))
    dims = [i for i in range(first.ndim) if i != 1]
    sizes, strides = collapse([first.sizes[i] for i in dims], [[t.strides[i] for i in dims] for t in tensors.values()])
    named: dict[str, Sequence[int]] = dict(zip(tensors, strides, strict=True))
    return sizes, named


def channel_sum(graph: Graph, x: Tensor, dtype: DType) -> Tensor:
    """Sum over all dimensions but 1."""
    out = graph.new((x.sizes[1],), dtype)
    if x.numel == 0:
        return fill(graph, out, 0)
    sizes, strides = _inner({"x": x})

    def words(w: Words) -> None:
        w.u32("rows", x.sizes[1])
        w.u32("count", x.numel // x.sizes[1])
        w.u32("step", x.strides[1])
        index_words(w, sizes, strides)

    def source(w: Words) -> str:
        return _row_loop(w, len(sizes), ["x"], "f32", f"a += ld_x(o * {w.step} + x_x);", "a + b", "st_o(o, a);")

    graph.launch("channel_sum", [("x", x, "r"), ("o", out, "w")], words, source, grid(x.sizes[1], 1), len(sizes))
    return out


def _moments(
    graph: Graph,
    x: Tensor,
    rows: tuple[int, int],
    inner: tuple[Sequence[int], Sequence[int]],
    eps: Any,
    running: tuple[Tensor, Tensor] | None = None,
    momentum: Any = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal standard deviation (float32) of each row; updates running statistics.

    Args:
        rows: number of rows and the stride between them.
        inner: sizes and strides of a row.
        running: mean and (unbiased) variance, moved towards the row's by ``momentum``.
    """
    count = product(inner[0])
    mean, scale = graph.new((rows[0],), F32), graph.new((rows[0],), F32)

    def words(w: Words) -> None:
        w.u32("rows", rows[0])
        w.u32("count", count)
        w.u32("step", rows[1])
        w.number("eps", eps, "f")
        w.number("momentum", momentum, "f")
        for name, t in zip(("rm", "rv"), running or (), strict=False):
            w.u32(name, t.strides[0])
        index_words(w, inner[0], {"x": inner[1]})

    def source(w: Words) -> str:
        finish = f"st_mean(o, a.x); st_scale(o, 1.0 / sqrt(a.y / a.z + {w.expr('eps', 'f')}));\n"
        if running is not None:
            for name, value in (("rm", "a.x"), ("rv", "a.y / (a.z - 1.0)")):
                at = f"o * {w.expr(name)}"
                step = f"{w.expr('momentum', 'f')} * ({value} - old)"
                finish += f"{{ let old = ld_{name}({at}); st_{name}({at}, old + {step}); }}\n"
        put = f"a = put_(a, ld_x(o * {w.step} + x_x));"
        return _MOMENTS + _row_loop(w, len(inner[0]), ["x"], "vec3<f32>", put, "join_(a, b)", finish)

    args = [("x", x, "r"), ("mean", mean, "w"), ("scale", scale, "w")]
    args += [(name, t, "w") for name, t in zip(("rm", "rv"), running or (), strict=False)]
    graph.launch("moments", args, words, source, grid(rows[0], 1), (len(inner[0]), running is not None))
    return mean, scale


def _normalise(graph: Graph, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``(x - mean) · scale · weight + bias`` along dimension 1."""
    out = graph.new(x.sizes, x.dtype)
    head, channels, plane = x.sizes[0], x.sizes[1], product(x.sizes[2:])
    sizes, (strides,) = collapse(x.sizes, [x.strides])
    args = {"mean": mean, "scale": scale, "weight": weight, "bias": bias}
    given = {name: t for name, t in args.items() if t is not None}
    flat = x.contiguous

    def words(w: Words) -> None:
        w.u32("channels", channels)
        w.u32("plane", plane)
        for name, t in given.items():
            w.u32(f"by_{name}", t.strides[0])
        if not flat:
            index_words(w, sizes, {"x": strides})

    def functions(w: Words) -> str:
        load = {name: f"ld_{name}(c * {w.expr(f'by_{name}')})" for name in given}
        value = f"(ld_x({'i' if flat else 'x_x'}) - {load['mean']}) * {load['scale']}"
        value += f" * {load['weight']}" if "weight" in load else ""
        value += f" + {load['bias']}" if "bias" in load else ""
        index = "" if flat else index_code(w, len(sizes), ["x"])
        return f"fn value_(i: u32) -> f32 {{\nlet c = (i / {w.plane}) % {w.channels};\n{index}\nreturn {value};\n}}"

    static = (tuple(given), flat, 0 if flat else len(sizes), head == 0)
    return gather(graph, "normalise", out, [("x", x), *given.items()], words, functions, static)


def _check(graph: Graph, x: Tensor, **parameters: Tensor | None) -> None:
    if x.ndim < 2:
        raise RuntimeError(f"{graph.op}: expected an input of at least 2 dimensions, got shape {list(x.sizes)}")
    if not x.dtype.is_float:
        raise RuntimeError(f"\"batch_norm\" not implemented for '{x.dtype.name}'")
    for name, t in parameters.items():
        if t is not None and t.sizes != (x.sizes[1],):
            raise RuntimeError(
                f"{name} should contain {x.sizes[1]} elements not {t.numel} "
                f"({graph.op}: input {list(x.sizes)}, {name} {list(t.sizes)})"
            )


def _batch_norm(
    graph: Graph,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    training: bool,
    momentum: Any,
    eps: Any,
) -> list[Tensor]:
    """Normalised input, and the batch's mean and reciprocal deviation (empty outside training)."""
    mean, variance = running
    _check(graph, x, weight=weight, bias=bias, running_mean=mean, running_var=variance)
    if not training:
        if mean is None or variance is None:
            raise RuntimeError(f"Expected running_mean and running_var to be defined when training=False in {graph.op}")
        out = _with_statistics(graph, x, mean, variance, weight, bias, eps)
        return [out, graph.new((0,), F32), graph.new((0,), F32)]
    channels = x.sizes[1]
    if x.numel == 0:
        saved = [fill(graph, graph.new((channels,), F32), 0) for _ in range(2)]
        return [graph.new(x.sizes, x.dtype), *saved]
    sizes, strides = _inner({"x": x})
    both = (mean, variance) if mean is not None and variance is not None else None
    batch_mean, scale = _moments(graph, x, (channels, x.strides[1]), (sizes, strides["x"]), eps, both, momentum)
    return [_normalise(graph, x, batch_mean, scale, weight, bias), batch_mean, scale]


def _with_statistics(
    graph: Graph, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: Any
) -> Tensor:
    """Normalised by known statistics: elementwise, so that it fuses with what is around it."""
    out = graph.new(x.sizes, x.dtype)
    rest = (1,) * (x.ndim - 2)
    vectors = [t.view((t.sizes[0], *rest), (t.strides[0], *(0 for _ in rest))) for t in (mean, variance)]
    form, operands = "({0} - {1}) * (1.0 / sqrt({2} + {3}))", [x, *vectors, eps]
    for t, operator in ((weight, "*"), (bias, "+")):
        if t is not None:
            form = f"({form}) {operator} {{{len(operands)}}}"
            operands.append(t.view((t.sizes[0], *rest), (t.strides[0], *(0 for _ in rest))))
    emit(graph, form, operands, ["f"] * len(operands), "f", out, "batch_norm")
    return out


@lower("native_batch_norm", "_native_batch_norm_legit", results=3, out="out")
def _native_batch_norm(
    graph: Graph, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: Any, eps: Any
) -> list[Tensor]:
    return _batch_norm(graph, x, weight, bias, (mean, variance), training, momentum, eps)


@lower("_native_batch_norm_legit.no_stats", results=3, out="no_stats_out")
def _no_stats(graph: Graph, x: Tensor, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any) -> list[Tensor]:
    return _batch_norm(graph, x, weight, bias, (None, None), training, momentum, eps)


@lower("_native_batch_norm_legit_no_training", results=3, out="out")
def _no_training(
    graph: Graph, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, momentum: Any, eps: Any
) -> list[Tensor]:
    return _batch_norm(graph, x, weight, bias, (mean, variance), False, momentum, eps)


@lower("_batch_norm_with_update", results=4, out="out")
def _with_update(
    graph: Graph, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, momentum: Any, eps: Any
) -> list[Tensor]:
    results = _batch_norm(graph, x, weight, bias, (mean, variance), True, momentum, eps)
    return [*results, graph.new((0,), wgsl.U8)]


@lower("_batch_norm_no_update", results=4, out="out")
def _no_update(
    graph: Graph, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, momentum: Any, eps: Any
) -> list[Tensor]:
    results = _batch_norm(graph, x, weight, bias, (mean, variance), False, momentum, eps)
    return [*results, graph.new((0,), wgsl.U8)]


# ---------------------------------------------------------------------------------------------------- backward


def _backward_sums(
    graph: Graph, grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, eps: Any | None
) -> tuple[Tensor, Tensor]:
    """Sums over each channel of the gradient, and of the gradient times the normalised input (float32)."""
    total, dot = graph.new((x.sizes[1],), F32), graph.new((x.sizes[1],), F32)
    sizes, strides = _inner({"x": x, "grad": grad})

    def words(w: Words) -> None:
        w.u32("rows", x.sizes[1])
        w.u32("count", x.numel // x.sizes[1])
        for name, t in (("x", x), ("grad", grad)):
            w.u32(f"step_{name}", t.strides[1])
        w.u32("by_mean", mean.strides[0])
        w.u32("by_scale", scale.strides[0])
        w.number("eps", 0.0 if eps is None else eps, "f")
        index_words(w, sizes, strides)

    def source(w: Words) -> str:
        put = (
            f"let dy = ld_grad(o * {w.step_grad} + x_grad);\n"
            f"a += vec2<f32>(dy, dy * (ld_x(o * {w.step_x} + x_x) - ld_mean(o * {w.by_mean})));"
        )
        factor = f"ld_scale(o * {w.by_scale})"
        factor = factor if eps is None else f"(1.0 / sqrt({factor} + {w.expr('eps', 'f')}))"
        finish = f"st_total(o, a.x); st_dot(o, a.y * {factor});"
        return _row_loop(w, len(sizes), ["x", "grad"], "vec2<f32>", put, "a + b", finish)

    args = [
        ("x", x, "r"),
        ("grad", grad, "r"),
        ("mean", mean, "r"),
        ("scale", scale, "r"),
        ("total", total, "w"),
        ("dot", dot, "w"),
    ]
    graph.launch("norm_sums", args, words, source, grid(x.sizes[1], 1), (len(sizes), eps is None))
    return total, dot


def _backward_input(
    graph: Graph,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    sums: tuple[Tensor, Tensor],
    eps: Any,
) -> Tensor:
    """Gradient of the input; ``eps`` is None in training, where the statistics depend on the input."""
    x, grad = contiguous(graph, x), contiguous(graph, grad)
    out = graph.new(x.sizes, x.dtype)
    given = {"grad": grad, "scale": scale} | ({"weight": weight} if weight is not None else {})
    if eps is None:
        given |= {"x": x, "mean": mean, "total": sums[0], "dot": sums[1]}

    def words(w: Words) -> None:
        w.u32("channels", x.sizes[1])
        w.u32("plane", product(x.sizes[2:]))
        w.f32("share", 1.0 / (x.numel // x.sizes[1]))
        w.number("eps", 0.0 if eps is None else eps, "f")
        for name in given.keys() & {"scale", "weight", "mean"}:
            w.u32(f"by_{name}", given[name].strides[0])

    def functions(w: Words) -> str:
        load = {name: f"ld_{name}(c * {w.expr(f'by_{name}')})" for name in given.keys() & {"scale", "weight", "mean"}}
        share = w.expr("share", "f")
        if eps is None:
            normal = f"(ld_x(i) - {load['mean']}) * {load['scale']}"
            value = f"{load['scale']} * (ld_grad(i) - {share} * (ld_total(c) + {normal} * ld_dot(c)))"
        else:
            value = f"ld_grad(i) / sqrt({load['scale']} + {w.expr('eps', 'f')})"
        value += f" * {load['weight']}" if "weight" in load else ""
        return f"fn value_(i: u32) -> f32 {{\nlet c = (i / {w.plane}) % {w.channels};\nreturn {value};\n}}"

    return gather(graph, "norm_backward", out, list(given.items()), words, functions, (tuple(given), eps is None))


@lower("native_batch_norm_backward", results=3, out="out")
def _batch_norm_backward(
    graph: Graph,
    grad: Tensor,
    x: Tensor,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_scale: Any,
    train: bool,
    eps: Any,
    mask: Sequence[bool],
) -> list[Tensor]:
    _check(graph, x, weight=weight)
    if grad.sizes != x.sizes:
        raise RuntimeError(f"{graph.op}: gradient {list(grad.sizes)} and input {list(x.sizes)} must have the same shape")
    channels, dtype = (x.sizes[1],), weight.dtype if weight is not None else x.dtype
    if x.numel == 0:
        return [graph.new(x.sizes, x.dtype), *(fill(graph, graph.new(channels, dtype), 0) for _ in range(2))]
    mean, scale = (save_mean, save_scale) if train else (running_mean, running_var)
    sums = _backward_sums(graph, grad, x, mean, scale, None if train else eps)
    gx = (
        _backward_input(graph, grad, x, weight, mean, scale, sums, None if train else eps)
        if mask[0]
        else graph.new((0,), x.dtype)
    )
    gw = converted(graph, sums[1], dtype) if mask[1] else graph.new((0,), dtype)
    gb = converted(graph, sums[0], dtype) if mask[2] else graph.new((0,), dtype)
    return [gx, gw, gb]


# ---------------------------------------------------------------------------------------------------- group norm


@lower("native_group_norm", results=3, out="out")
def _group_norm(
    graph: Graph,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    plane: int,
    groups: int,
    eps: Any,
) -> list[Tensor]:
    if groups < 1 or c % groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(x.sizes)} and num_groups={groups} in {graph.op}"
        )
    _check(graph, x, weight=weight, bias=bias)
    x = contiguous(graph, x)
    row = c // groups * plane
    if x.numel == 0:
        saved = [fill(graph, graph.new((n, groups), F32), 0) for _ in range(2)]
        return [graph.new(x.sizes, x.dtype), *saved]
    mean, scale = _moments(graph, x, (n * groups, row), ([row], [1]), eps)
    out = graph.new(x.sizes, x.dtype)
    given = {name: t for name, t in (("weight", weight), ("bias", bias)) if t is not None}

    def words(w: Words) -> None:
        w.u32("channels", c)
        w.u32("plane", plane)
        w.u32("row", row)
        for name, t in given.items():
            w.u32(f"by_{name}", t.strides[0])

    def functions(w: Words) -> str:
        load = {name: f"ld_{name}(c * {w.expr(f'by_{name}')})" for name in given}
        value = "(ld_x(i) - ld_mean(r)) * ld_scale(r)"
        value += f" * {load['weight']}" if "weight" in load else ""
        value += f" + {load['bias']}" if "bias" in load else ""
        split = f"let c = (i / {w.plane}) % {w.channels}; let r = i / {w.row};"
        return f"fn value_(i: u32) -> f32 {{\n{split}\nreturn {value};\n}}"

    args = [("x", x), ("mean", mean), ("scale", scale), *given.items()]
    gather(graph, "group_norm", out, args, words, functions, tuple(given))
    return [out, *(converted(graph, t, x.dtype).reshape((n, groups)) for t in (mean, scale))]
