"""Upsampling and downsampling: nearest, linear, cubic, and their antialiased forms."""

from __future__ import annotations

from typing import Any

from ..recipe import Graph, Scalar, Tensor, Words
from ..registry import lower
from ..wgsl import TYPE
from .gather import five, gather, triple, unpack

# Sampling positions, in elements of the input; s is input elements an output element.
_COORDINATES = (
    "fn source_(o: u32, s: f32, aligned: bool) -> f32 {\nreturn select((f32(o) + 0.5) * s - 0.5, f32(o) * s, aligned);\n}\n"
)
# Keys' cubic convolution kernel (1981) at distance x with parameter a.
_CUBIC = (
    "fn cubic_(d: f32, a: f32) -> f32 {\nlet x = abs(d);\n"
    "if (x <= 1.0) { return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0; }\n"
    "if (x < 2.0) { return (((x - 5.0) * x + 8.0) * x - 4.0) * a; }\nreturn 0.0;\n}\n"
)


def _scale(n: int, size: int, aligned: bool, given: Any) -> float:
    """Input elements an output element."""
    if aligned:
        return (n - 1) / (size - 1) if size > 1 else 0.0
    factor = given.value if isinstance(given, Scalar) else given
    return 1.0 / factor if factor is not None and factor > 0 else n / size


def _resample(graph: Graph, x: Tensor, size: Any, scales: tuple[Any, ...], aligned: bool, rank: int, filter_: str) -> Tensor:
    """Resamples ``rank`` trailing dimensions to ``size``; ``filter_`` is a key of ``_VALUES``."""
    if x.ndim != rank + 2 or len(size) != rank:
        raise RuntimeError(
            f"It is expected input_size equals to {rank + 2} and output_size equals to {rank}, but got input "
            f"{list(x.sizes)} and output size {list(size)} in {graph.op}"
        )
    if min(*size, *x.sizes[1:], 1) < 1:
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {list(x.sizes)} "
            f"and output size {list(size)} in {graph.op}"
        )
    nearest = filter_.startswith("nearest")
    if not x.dtype.is_float and not nearest:
        raise RuntimeError(f"\"{graph.op}\" not implemented for '{x.dtype.name}'")
    source, spatial = five(x, rank), triple(size, 1, rank)
    steps = [1.0] * (3 - rank)
    steps += [_scale(n, m, aligned, s) for n, m, s in zip(x.sizes[2:], size, scales, strict=True)]
    out = graph.new((*x.sizes[:2], *size), x.dtype)

    def words(w: Words) -> None:
        for axis, stride in zip("ncdhw", source.strides, strict=True):
            w.u32(f"x{axis}", stride)
        w.u32("channels", source.sizes[1])
        w.u32("aligned", int(aligned))
        for i, d in enumerate("dhw"):
            w.u32(f"i{d}", source.sizes[2 + i])
            w.u32(f"o{d}", spatial[i])
            w.f32(f"s{d}", steps[i])

    def functions(w: Words) -> str:
        head = unpack("i", ["b", "c", "o_d", "o_h", "o_w"], [w.channels, w.od, w.oh, w.ow])
        cls = TYPE[x.dtype.cls]
        return (
            _COORDINATES
            + _CUBIC
            + f"fn value_(i: u32) -> {cls} {{\n{head}\n"
            + f"let xb = b * {w.xn} + c * {w.xc};\nlet aligned = {w.aligned} != 0u;\n"
            + (_nearest(w, filter_) if nearest else _filtered(w, filter_, rank))
            + "\n}"
        )

    return gather(graph, f"resample_{filter_}", out, [("x", source)], words, functions, rank)


def _nearest(w: Words, filter_: str) -> str:
    shift = " + 0.5" if filter_ == "nearest_exact" else ""
    lines = ["var at = xb;"]
    for d in "dhw":
        at = f"min(u32(floor((f32(o_{d}){shift}) * {w.expr(f's{d}', 'f')})), {w.expr(f'i{d}')} - 1u)"
        lines.append(f"at += {at} * {w.expr(f'x{d}')};")
    return "\n".join([*lines, "return ld_x(at);"])


def _filtered(w: Words, filter_: str, rank: int) -> str:
    """A weighted sum over a window of input elements, normalised along each dimension where it is antialiased."""
    axes = "dhw"[3 - rank :]
    antialiased = filter_.endswith("_aa")
    taps = _antialiased_taps if antialiased else _linear_taps if filter_ == "linear" else _cubic_taps
    lines = ["var v0 = 0.0; var t0 = 0.0;"]
    for d in axes:
        lines.append(taps(w, d, filter_))
    offset = "xb"
    for level, d in enumerate(axes):
        lines.append(f"for (var j_{d} = 0; j_{d} < n_{d}; j_{d}++) {{\n{_weight(d, filter_)}")
        lines.append(
            f"let at_{d} = {offset} + {w.expr(f'x{d}')} * u32(clamp(f_{d} + j_{d}, 0, bitcast<i32>({w.expr(f'i{d}')}) - 1));"
        )
        offset = f"at_{d}"
        if level + 1 < rank:
            lines.append(f"var v{level + 1} = 0.0; var t{level + 1} = 0.0;")
    lines.append(f"v{rank - 1} += wt_{axes[-1]} * ld_x({offset}); t{rank - 1} += wt_{axes[-1]};\n}}")
    for level in range(rank - 2, -1, -1):
        d = axes[level]
        inner = f"v{level + 1} / t{level + 1}" if antialiased else f"v{level + 1}"
        lines.append(f"v{level} += wt_{d} * ({inner}); t{level} += wt_{d};\n}}")
    return "\n".join([*lines, "return v0 / t0;" if antialiased else "return v0;"])


def _linear_taps(w: Words, d: str, _filter: str) -> str:
    """First tap ``f_``, number of taps ``n_``, and fraction ``r_`` of a linear filter along one dimension."""
    return (
        f"let p_{d} = max(source_(o_{d}, {w.expr(f's{d}', 'f')}, aligned), 0.0);\n"
        f"let f_{d} = min(i32(p_{d}), bitcast<i32>({w.expr(f'i{d}')}) - 1); let n_{d} = 2;\n"
        f"let r_{d} = clamp(p_{d} - f32(f_{d}), 0.0, 1.0);"
    )


def _cubic_taps(w: Words, d: str, _filter: str) -> str:
    return (
        f"let p_{d} = source_(o_{d}, {w.expr(f's{d}', 'f')}, aligned);\n"
        f"let f_{d} = i32(floor(p_{d})) - 1; let n_{d} = 4; let r_{d} = p_{d} - floor(p_{d});"
    )


def _antialiased_taps(w: Words, d: str, filter_: str) -> str:
    """The filter is widened to cover what one output element stands for."""
    reach = "1.0" if filter_ == "linear_aa" else "2.0"
    n = f"bitcast<i32>({w.expr(f'i{d}')})"
    return (
        f"let z_{d} = max({w.expr(f's{d}', 'f')}, 1.0); let q_{d} = {w.expr(f's{d}', 'f')} * (f32(o_{d}) + 0.5);\n"
        f"let f_{d} = max(i32(q_{d} - {reach} * z_{d} + 0.5), 0);\n"
        f"let n_{d} = max(min(i32(q_{d} + {reach} * z_{d} + 0.5), {n}) - f_{d}, 0);"
    )


def _weight(d: str, filter_: str) -> str:
    distance = f"(f32(j_{d} + f_{d}) - q_{d} + 0.5) / z_{d}"
    value = {
        "nearest": "1.0",
        "nearest_exact": "1.0",
        "linear": f"select(r_{d}, 1.0 - r_{d}, j_{d} == 0)",
        "cubic": f"cubic_(f32(j_{d} - 1) - r_{d}, -0.75)",
        "linear_aa": f"max(1.0 - abs({distance}), 0.0)",
        "cubic_aa": f"cubic_({distance}, -0.5)",
    }[filter_]
    return f"let wt_{d} = {value};"


def _register_nearest(rank: int) -> None:
    @lower(f"upsample_nearest{rank}d")
    def nearest(graph: Graph, x: Tensor, size: Any, *scales: Any) -> Tensor:
        return _resample(graph, x, size, scales, False, rank, "nearest")

    @lower(f"_upsample_nearest_exact{rank}d")
    def exact(graph: Graph, x: Tensor, size: Any, *scales: Any) -> Tensor:
        return _resample(graph, x, size, scales, False, rank, "nearest_exact")


def _register_filtered(name: str, rank: int, filter_: str) -> None:
    @lower(name)
    def lowering(graph: Graph, x: Tensor, size: Any, aligned: bool, *scales: Any) -> Tensor:
        return _resample(graph, x, size, scales, aligned, rank, filter_)


for _rank in (1, 2, 3):
    _register_nearest(_rank)
for _name, _rank, _filter in (
    ("upsample_linear1d", 1, "linear"),
    ("upsample_bilinear2d", 2, "linear"),
    ("upsample_trilinear3d", 3, "linear"),
    ("upsample_bicubic2d", 2, "cubic"),
    ("_upsample_bilinear2d_aa", 2, "linear_aa"),
    ("_upsample_bicubic2d_aa", 2, "cubic_aa"),
):
    _register_filtered(_name, _rank, _filter)


# ---------------------------------------------------------------------------------------------------- backward


def _resample_back(
    graph: Graph, grad: Tensor, size: Any, shape: Any, scales: tuple[Any, ...], aligned: bool, filter_: str
) -> Tensor:
    """Gradient of the input of shape ``shape``: each element gathers from the outputs whose filters reach it."""
    rank = len(size)
    if grad.sizes != (*shape[:2], *size) or len(shape) != rank + 2:
        raise RuntimeError(
            f"{graph.op}: Expected grad_output to have shape {[*shape[:2], *size]}, but got {list(grad.sizes)}"
        )
    source, inner, outer = five(grad, rank), triple(shape[2:], 1, rank), triple(size, 1, rank)
    steps = [1.0] * (3 - rank)
    steps += [_scale(n, m, aligned, s) for n, m, s in zip(shape[2:], size, scales, strict=True)]

    def words(w: Words) -> None:
        for axis, stride in zip("ncdhw", source.strides, strict=True):
            w.u32(f"x{axis}", stride)
        w.u32("channels", source.sizes[1])
        w.u32("aligned", int(aligned))
        for i, d in enumerate("dhw"):
            w.u32(f"i{d}", inner[i])
            w.u32(f"o{d}", outer[i])
            w.f32(f"s{d}", steps[i])

    def functions(w: Words) -> str:
        axes = "dhw"[3 - rank :]
        lines = [
            _COORDINATES + _CUBIC + _REACHED + "fn value_(i: u32) -> f32 {",
            unpack("i", ["b", "c", "i_d", "i_h", "i_w"], [w.channels, w.id, w.ih, w.iw]),
            f"let at = b * {w.xn} + c * {w.xc}; var sum = 0.0; let aligned = {w.aligned} != 0u;",
        ]
        lines += [_reaching(w, d, filter_) for d in axes]
        at = " + ".join(f"o_{d} * {w.expr(f'x{d}')}" for d in axes)
        weight = " * ".join(f"sum_{d}" for d in axes)
        return "\n".join([*lines, f"sum += {weight} * ld_x(at + {at});", "}\n" * rank, "return sum;\n}"])

    out = graph.new(shape, grad.dtype)
    return gather(graph, f"resample_back_{filter_}", out, [("x", source)], words, functions, rank)


# Range of outputs whose filters of radius r may touch input i of n, wider than need be; borders take all beyond.
_REACHED = (
    "fn reached_(i: u32, r: f32, s: f32, n: u32, m: u32, aligned: bool) -> vec2<u32> {\n"
    "if (s <= 0.0) { return vec2<u32>(0u, m); }\nlet shift = select(0.5, 0.0, aligned);\n"
    "let low = floor((f32(i) - r + shift) / s - shift) - 1.0;\n"
    "let high = ceil((f32(i) + r + shift) / s - shift) + 2.0;\n"
    "return vec2<u32>(select(u32(clamp(low, 0.0, f32(m))), 0u, i == 0u),\n"
    "select(u32(clamp(high, 0.0, f32(m))), m, i + 1u == n));\n}\n"
)


def _reaching(w: Words, d: str, filter_: str) -> str:
    """Opens a loop over outputs along one dimension; ``sum_`` is the weight by which they read the input element."""
    taps = _linear_taps if filter_ == "linear" else _cubic_taps if filter_ == "cubic" else _nearest_taps
    n = w.expr(f"i{d}")
    reach = "2.0" if filter_ == "cubic" else "1.0"
    return (
        f"let g_{d} = reached_(i_{d}, {reach}, {w.expr(f's{d}', 'f')}, {n}, {w.expr(f'o{d}')}, aligned);\n"
        f"for (var o_{d} = g_{d}.x; o_{d} < g_{d}.y; o_{d}++) {{\n{taps(w, d, filter_)}\nvar sum_{d} = 0.0;\n"
        f"for (var j_{d} = 0; j_{d} < n_{d}; j_{d}++) {{\n{_weight(d, filter_)}\n"
        f"if (u32(clamp(f_{d} + j_{d}, 0, bitcast<i32>({n}) - 1)) == i_{d}) {{ sum_{d} += wt_{d}; }}\n}}\n"
        f"if (sum_{d} == 0.0) {{ continue; }}"
    )


def _nearest_taps(w: Words, d: str, filter_: str) -> str:
    shift = " + 0.5" if filter_ == "nearest_exact" else ""
    return f"let f_{d} = i32(floor((f32(o_{d}){shift}) * {w.expr(f's{d}', 'f')})); let n_{d} = 1;"


def _register_nearest_back(rank: int) -> None:
    @lower(f"upsample_nearest{rank}d_backward", out="grad_input")
    def nearest(graph: Graph, grad: Tensor, size: Any, shape: Any, *scales: Any) -> Tensor:
        return _resample_back(graph, grad, size, shape, scales, False, "nearest")

    @lower(f"_upsample_nearest_exact{rank}d_backward", out="grad_input")
    def exact(graph: Graph, grad: Tensor, size: Any, shape: Any, *scales: Any) -> Tensor:
        return _resample_back(graph, grad, size, shape, scales, False, "nearest_exact")


def _register_filtered_back(name: str, filter_: str) -> None:
    @lower(f"{name}_backward", out="grad_input")
    def lowering(graph: Graph, grad: Tensor, size: Any, shape: Any, aligned: bool, *scales: Any) -> Tensor:
        return _resample_back(graph, grad, size, shape, scales, aligned, filter_)


for _rank in (1, 2, 3):
    _register_nearest_back(_rank)
for _name, _filter in (
    ("upsample_linear1d", "linear"),
    ("upsample_bilinear2d", "linear"),
    ("upsample_trilinear3d", "linear"),
    ("upsample_bicubic2d", "cubic"),
):
    _register_filtered_back(_name, _filter)
