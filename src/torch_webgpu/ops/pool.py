"""Max and average pooling, strided and adaptive, of one to three spatial dimensions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, contiguous
from ..recipe import Graph, Tensor, Words, contiguous_strides, grid
from ..registry import lower
from ..wgsl import I64
from .gather import five, gather, triple, unpack

Triple = tuple[int, int, int]


def _check(graph: Graph, x: Tensor, rank: int) -> None:
    if x.ndim not in (rank + 1, rank + 2) or any(n == 0 for n in x.sizes[x.ndim - rank - 1 :]):
        raise RuntimeError(
            f"{graph.op}: Expected {rank + 1}D or {rank + 2}D (batch mode) tensor with optional 0 dim batch size for "
            f"input, but got: {list(x.sizes)}"
        )


def _pooled_size(graph: Graph, x: Tensor, n: int, k: int, s: int, p: int, d: int, ceil: bool) -> int:
    """Windows along one dimension; the last one must start inside the input or its left padding."""
    if k < 1 or s < 1 or d < 1:
        raise RuntimeError(
            f"{graph.op}: kernel size, stride and dilation should be greater than zero, but got {k}, {s} and {d}"
        )
    if p < 0 or 2 * p > (k - 1) * d + 1:
        raise RuntimeError(
            f"{graph.op}: pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k}"
        )
    size = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
    if ceil and (size - 1) * s >= n + p:
        size -= 1
    if size < 1:
        raise RuntimeError(f"{graph.op}: Given input size: {list(x.sizes)} and kernel size {k}: Output size is too small")
    return size


class Windows:
    """The windows of a pooling over three spatial dimensions.

    Attributes:
        x: input as five dimensions.
        sizes: of the output, without the leading ones that ``x`` was given.
        spatial: of the output, three.
        adaptive: whether windows divide the input evenly instead of by kernel, stride, padding and dilation.
    """

    def __init__(
        self, x: Tensor, rank: int, spatial: Triple, kernel: Triple, stride: Triple, padding: Triple, dilation: Triple
    ) -> None:
        self.x = five(x, rank)
        self.spatial = spatial
        self.sizes = (*x.sizes[: x.ndim - rank], *spatial[3 - rank :])
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.adaptive = kernel == (0, 0, 0)

    @classmethod
    def strided(
        cls, graph: Graph, x: Tensor, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
    ) -> Windows:
        """Windows by kernel size; an empty stride stands for the kernel size."""
        _check(graph, x, rank)
        k, p, d = triple(kernel, 1, rank), triple(padding, 0, rank), triple(dilation, 1, rank)
        s = triple(stride, 1, rank) if stride else k
        inner = five(x, rank).sizes[2:]
        out = [_pooled_size(graph, x, *at, ceil) for at in zip(inner, k, s, p, d, strict=True)]
        return cls(x, rank, (out[0], out[1], out[2]), k, s, p, d)

    @classmethod
    def by_output(cls, graph: Graph, x: Tensor, rank: int, size: Any) -> Windows:
        """Adaptive windows for an output size."""
        _check(graph, x, rank)
        ones = (1, 1, 1)
        return cls(x, rank, triple(size, 1, rank), (0, 0, 0), ones, (0, 0, 0), ones)

    def words(self, w: Words) -> None:
        for axis, stride in zip("ncdhw", self.x.strides, strict=True):
            w.u32(f"x{axis}", stride)
        w.u32("channels", self.x.sizes[1])
        for i, d in enumerate("dhw"):
            w.u32(f"i{d}", self.x.sizes[2 + i])
            w.u32(f"o{d}", self.spatial[i])
            w.u32(f"k{d}", self.kernel[i])
            w.u32(f"s{d}", self.stride[i])
            w.u32(f"p{d}", self.padding[i])
            w.u32(f"d{d}", self.dilation[i])

    def head(self, w: Words, index: str) -> str:
        """WGSL that finds the window of a linear output index: first ``f_``, end ``e_`` (clipped), volume ``full``."""
        lines = [unpack(index, ["b", "c", "o_d", "o_h", "o_w"], [w.channels, w.od, w.oh, w.ow]), "var full = 1u;"]
        for d in "dhw":
            n, o = w.expr(f"i{d}"), w.expr(f"o{d}")
            if self.adaptive:
                lines.append(f"let f_{d} = o_{d} * {n} / {o}; let e_{d} = ((o_{d} + 1u) * {n} + {o} - 1u) / {o};")
                lines.append(f"full *= e_{d} - f_{d};")
                continue
            k, s, p, step = (w.expr(f"{name}{d}") for name in "kspd")
            lines.append(
                f"var f_{d} = o_{d} * {s}; let r_{d} = f_{d} + ({k} - 1u) * {step} + 1u;\n"
                f"full *= min(r_{d}, {n} + 2u * {p}) - f_{d};\n"
                f"let e_{d} = min(max(r_{d}, {p}) - {p}, {n});\n"
                f"if (f_{d} < {p}) {{ f_{d} += ({p} - f_{d} + {step} - 1u) / {step} * {step}; }}\nf_{d} -= {p};"
            )
        return "\n".join(lines)

    def loops(self, w: Words, body: str) -> str:
        """WGSL that runs ``body`` for each input position ``i_d, i_h, i_w`` in the window; ``at`` is its offset."""
        step = {d: "1u" if self.adaptive else w.expr(f"d{d}") for d in "dhw"}
        opened = "".join(f"for (var i_{d} = f_{d}; i_{d} < e_{d}; i_{d} += {step[d]}) {{\n" for d in "dhw")
        at = f"let at = b * {w.xn} + c * {w.xc} + i_d * {w.xd} + i_h * {w.xh} + i_w * {w.xw};\n"
        return opened + at + body + "\n}\n}\n}"


def _max(graph: Graph, windows: Windows) -> list[Tensor]:
    """Largest element of each window, and its index in the input's spatial dimensions (int64)."""
    x = windows.x
    out, index = graph.new(windows.sizes, x.dtype), graph.new(windows.sizes, I64)
    cls = "i" if x.dtype.cls == "b" else x.dtype.cls
    n = out.numel
    if n == 0:
        return [out, index]
    better = {"f": "isnan_(v) || v > best", "i": "v > best", "l": "lt64(best, v)"}[cls]

    def words(w: Words) -> None:
        w.u32("n", n)
        windows.words(w)

    def source(w: Words) -> str:
        body = (
            f"let v = {wgsl.cast('ld_x(at)', x.dtype.cls, cls)};\n"
            f"if (first || {better}) {{ best = v; first = false; where_ = (i_d * {w.ih} + i_h) * {w.iw} + i_w; }}"
        )
        return (
            MAIN.format(wg=WORKGROUP)
            + f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}\n{windows.head(w, 'i')}\n"
            + f"var best = {wgsl.ZERO[cls]}; var where_ = 0u; var first = true;\n{windows.loops(w, body)}\n"
            + f"st_o(i, {wgsl.cast('best', cls, x.dtype.cls)}); st_at(i, vec2<u32>(where_, 0u));\n}}"
        )

    args = [("x", x, "r"), ("o", out, "w"), ("at", index, "w")]
    graph.launch("max_pool", args, words, source, grid(n, WORKGROUP), windows.adaptive)
    return [out, index]


def _average(graph: Graph, windows: Windows, divisor: int | None, padded: bool) -> Tensor:
    """Mean of each window: over ``divisor``, or its elements including those in the padding if ``padded``."""
    x = windows.x
    if not x.dtype.is_float:
        raise RuntimeError(f"\"{graph.op}\" not implemented for '{x.dtype.name}'")

    def words(w: Words) -> None:
        windows.words(w)
        w.u32("divisor", divisor or 0)

    def functions(w: Words) -> str:
        count = f"f32(bitcast<i32>({w.divisor}))" if divisor is not None else "f32(full)" if padded else "count"
        return (
            f"fn value_(i: u32) -> f32 {{\n{windows.head(w, 'i')}\nvar sum = 0.0; var count = 0.0;\n"
            + windows.loops(w, "sum += ld_x(at); count += 1.0;")
            + f"\nreturn quotient_(sum, {count});\n}}"
        )

    out = graph.new(windows.sizes, x.dtype)
    static = (windows.adaptive, divisor is not None, padded)
    return gather(graph, "avg_pool", out, [("x", x)], words, functions, static)


def _register_max(rank: int) -> None:
    @lower(f"max_pool{rank}d_with_indices", results=2)
    def lowering(
        graph: Graph, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
    ) -> list[Tensor]:
        return _max(graph, Windows.strided(graph, x, rank, kernel, stride, padding, dilation, ceil))


def _register_average(rank: int) -> None:
    @lower(f"avg_pool{rank}d")
    def lowering(
        graph: Graph,
        x: Tensor,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil: bool = False,
        count_padding: bool = True,
        divisor: int | None = None,
    ) -> Tensor:
        if divisor == 0:
            raise RuntimeError(f"{graph.op}: divisor must be not zero")
        windows = Windows.strided(graph, x, rank, kernel, stride, padding, 1, ceil)
        return _average(graph, windows, divisor, count_padding)


for _rank in (2, 3):
    _register_max(_rank)
    _register_average(_rank)


@lower("_adaptive_avg_pool2d")
def _adaptive_average2d(graph: Graph, x: Tensor, size: Any) -> Tensor:
    return _average(graph, Windows.by_output(graph, x, 2, size), None, True)


@lower("_adaptive_avg_pool3d")
def _adaptive_average3d(graph: Graph, x: Tensor, size: Any) -> Tensor:
    return _average(graph, Windows.by_output(graph, x, 3, size), None, True)


@lower("adaptive_max_pool2d", results=2)
def _adaptive_max2d(graph: Graph, x: Tensor, size: Any) -> list[Tensor]:
    return _max(graph, Windows.by_output(graph, x, 2, size))


@lower("adaptive_max_pool3d", results=2)
def _adaptive_max3d(graph: Graph, x: Tensor, size: Any) -> list[Tensor]:
    return _max(graph, Windows.by_output(graph, x, 3, size))


# ---------------------------------------------------------------------------------------------------- backward


def _scatter_back(
    graph: Graph, name: str, windows: Windows, args: Any, term: Callable[[Words], str], static: Any, extra: Any
) -> Tensor:
    """Sums ``term`` over the windows ``o_d, o_h, o_w`` (linear index ``oi``) that cover each input position."""
    x = windows.x
    out = graph.new(x.sizes, x.dtype)

    def words(w: Words) -> None:
        windows.words(w)
        w.u32("extra", extra)

    def functions(w: Words) -> str:
        lines = [unpack("i", ["b", "c", "i_d", "i_h", "i_w"], [w.channels, w.id, w.ih, w.iw]), "var sum = 0.0;"]
        for d in "dhw":
            k, s, p, step = (w.expr(f"{name}{d}") for name in "kspd")
            lines.append(
                f"for (var k_{d} = 0u; k_{d} < {k}; k_{d}++) {{\n"
                f"let t_{d} = i_{d} + {p} - k_{d} * {step}; let o_{d} = t_{d} / {s};\n"
                f"if (t_{d} >= 0x80000000u || o_{d} * {s} != t_{d} || o_{d} >= {w.expr('o' + d)}) {{ continue; }}"
            )
        lines.append(
            f"let oi = (((b * {w.channels} + c) * {w.od} + o_d) * {w.oh} + o_h) * {w.ow} + o_w;\n{term(w)}\n}}\n}}\n}}"
        )
        return "fn value_(i: u32) -> f32 {\n" + "\n".join(lines) + "\nreturn sum;\n}"

    return gather(graph, name, out, args, words, functions, static)


@lower("max_pool2d_with_indices_backward", out="grad_input")
def _max_backward(
    graph: Graph,
    grad: Tensor,
    x: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
    index: Tensor,
) -> Tensor:
    windows = Windows.strided(graph, x, 2, kernel, stride, padding, dilation, ceil)
    if grad.sizes != windows.sizes or index.sizes != windows.sizes:
        raise RuntimeError(
            f"{graph.op}: expected gradient and indices of shape {list(windows.sizes)}, got {list(grad.sizes)}"
        )
    args = [("grad", contiguous(graph, grad)), ("at", contiguous(graph, index))]

    def term(w: Words) -> str:
        return f"if (ld_at(oi).x == i_h * {w.iw} + i_w) {{ sum += ld_grad(oi); }}"

    return _scatter_back(graph, "max_pool_back", windows, args, term, (), 0).view(x.sizes, contiguous_strides(x.sizes))


@lower("avg_pool2d_backward", out="grad_input")
def _average_backward(
    graph: Graph,
    grad: Tensor,
    x: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    count_padding: bool,
    divisor: int | None,
) -> Tensor:
    windows = Windows.strided(graph, x, 2, kernel, stride, padding, 1, ceil)
    if grad.sizes != windows.sizes:
        raise RuntimeError(f"{graph.op}: expected a gradient of shape {list(windows.sizes)}, got {list(grad.sizes)}")

    def term(w: Words) -> str:
        if divisor is not None:
            return f"sum += ld_grad(oi) / f32(bitcast<i32>({w.extra}));"
        lines = ["var count = 1u;"]
        for d in "dhw":
            n, p = w.expr(f"i{d}"), w.expr(f"p{d}")
            lines.append(f"{{ let f = o_{d} * {w.expr(f's{d}')}; let e = f + {w.expr(f'k{d}')};")
            whole = f"min(e, {n} + 2u * {p}) - f" if count_padding else f"min(e, {n} + {p}) - max(f, {p})"
            lines.append(f"count *= {whole}; }}")
        return "\n".join([*lines, "sum += ld_grad(oi) / f32(count);"])

    args = [("grad", contiguous(graph, grad))]
    static = (divisor is not None, count_padding)
    out = _scatter_back(graph, "avg_pool_back", windows, args, term, static, divisor or 0)
    return out.view(x.sizes, contiguous_strides(x.sizes))


@lower("_adaptive_avg_pool2d_backward", out="out")
def _adaptive_backward(graph: Graph, grad: Tensor, x: Tensor) -> Tensor:
    windows = Windows.by_output(graph, x, 2, grad.sizes[-2:])
    if grad.sizes != windows.sizes:
        raise RuntimeError(f"{graph.op}: expected a gradient of shape {list(windows.sizes)}, got {list(grad.sizes)}")

    def functions(w: Words) -> str:
        lines = [unpack("i", ["b", "c", "i_d", "i_h", "i_w"], [w.channels, w.id, w.ih, w.iw]), "var sum = 0.0;"]
        for d in "hw":
            n, m = w.expr(f"i{d}"), w.expr(f"o{d}")
            lines.append(
                f"for (var o = i_{d} * {m} / {n}; o < ((i_{d} + 1u) * {m} + {n} - 1u) / {n}; o++) {{ let o_{d} = o;\n"
                f"let e_{d} = ((o + 1u) * {n} + {m} - 1u) / {m} - o * {n} / {m};"
            )
        at = f"((b * {w.channels} + c) * {w.oh} + o_h) * {w.ow} + o_w"
        lines.append(f"sum += ld_grad({at}) / f32(e_h * e_w);\n}}\n}}\nreturn sum;\n}}")
        return "fn value_(i: u32) -> f32 {\n" + "\n".join(lines)

    out = graph.new(x.sizes, x.dtype)
    return gather(graph, "adaptive_avg_pool_back", out, [("grad", contiguous(graph, grad))], windows.words, functions)
