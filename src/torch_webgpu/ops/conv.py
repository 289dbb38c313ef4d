"""Convolutions of one to three spatial dimensions, forward and backward.

Every convolution is one of two contractions. ``correlate`` sums over channels and taps: forward and, with
``transposed`` window arithmetic, input gradients and transposed convolutions. ``_correlate_weight`` sums over
positions: weight gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import wgsl
from ..kernels.program import IDENTITY, Program
from ..recipe import Graph, Tensor, Words, grid, product
from ..registry import lower
from .creation import fill
from .gather import five, gather, triple, unpack
from .tiles import DEPTH, offset, tile_grid, tile_words, tiled

SMALLEST_TILED = 8  # output channels a group, and terms, from which tiles pay

_INSIDE = {
    # Index of the input position under a tap; 0xffffffff (u32 wrap-around included) where there is none.
    False: "fn at_(o: u32, k: u32, s: u32, p: u32, d: u32, n: u32) -> u32 {\n"
    "let t = o * s + k * d - p; return select(0xffffffffu, t, t < n); }\n",
    True: "fn at_(o: u32, k: u32, s: u32, p: u32, d: u32, n: u32) -> u32 {\n"
    "let t = o + p - k * d; let q = t / s;\n"
    "return select(0xffffffffu, q, t < 0x80000000u && q * s == t && q < n); }\n",
}
_NONE = "0xffffffffu"


@dataclass(frozen=True)
class Epilogue:
    """Arithmetic on each result before it is stored.

    Attributes:
        program: its inputs are the result (class ``f``) and one a tensor of ``extras``; a float comes out.
        extras: five-dimensional, of the result's sizes, contiguous within a channel or the same all over it.
    """

    program: Program = IDENTITY
    extras: tuple[Tensor, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What the shader depends on."""
        return self.program, tuple(in_planes(t) for t in self.extras)

    def args(self) -> list[tuple[str, Tensor]]:
        return [(f"x{i}", t) for i, t in enumerate(self.extras)]

    def words(self, w: Words) -> None:
        for i, t in enumerate(self.extras):
            w.u32(f"x{i}n", t.strides[0])
            w.u32(f"x{i}c", t.strides[1])

    def function(self, w: Words) -> str:
        """WGSL ``finish_(value, batch, channel, position in the plane)``."""
        inputs = ["value"]
        for i, (t, cls) in enumerate(zip(self.extras, self.program.inputs[1:], strict=True)):
            at = f"b * {w.expr(f'x{i}n')} + c * {w.expr(f'x{i}c')}" + (" + p" if in_planes(t) else "")
            inputs.append(wgsl.cast(f"ld_x{i}({at})", t.dtype.cls, cls))
        lines, result = self.program.emit(inputs)
        result = wgsl.cast(result, self.program.cls, "f")
        return f"fn finish_(value: f32, b: u32, c: u32, p: u32) -> f32 {{\n{lines}return {result};\n}}\n"


def in_planes(t: Tensor) -> bool | None:
    """Whether a tensor (N, C, D, H, W) has an element a position, in order; False where it has one a channel, else None."""
    dims = [(n, s) for n, s in zip(t.sizes[2:], t.strides[2:], strict=True) if n > 1]
    if all(s == 0 for _, s in dims):
        return False
    step = 1
    for n, s in reversed(dims):
        if s != step:
            return None
        step *= n
    return True


@dataclass(frozen=True)
class Window:
    """Stride, padding and dilation of three spatial dimensions; ``transposed`` swaps the roles of input and output."""

    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    transposed: bool

    def flipped(self) -> Window:
        """The window of the adjoint map."""
        return Window(self.stride, self.padding, self.dilation, not self.transposed)


def _window_words(w: Words, window: Window, source: Tensor, result: Sequence[int], taps: Sequence[int]) -> None:
    for i, d in enumerate("dhw"):
        w.u32(f"i{d}", source.sizes[2 + i])
        w.u32(f"o{d}", result[i])
        w.u32(f"k{d}", taps[i])
        w.u32(f"s{d}", window.stride[i])
        w.u32(f"p{d}", window.padding[i])
        w.u32(f"d{d}", window.dilation[i])


def _stride_words(w: Words, name: str, t: Tensor) -> None:
    for axis, stride in zip("ncdhw", t.strides, strict=True):
        w.u32(f"{name}{axis}", stride)


def _at(w: Words, axis: str) -> str:
    """Input coordinate under output coordinate ``o_<axis>`` and tap ``k_<axis>``."""
    s, p, d, n = (w.expr(name + axis) for name in "spdi")
    return f"at_(o_{axis}, k_{axis}, {s}, {p}, {d}, {n})"


def _position(w: Words, base: str, name: str) -> str:
    """WGSL setting ``inside`` and ``xp``, the offset of the input position in tensor ``name``."""
    return (
        f"let a_d = {_at(w, 'd')}; let a_h = {_at(w, 'h')}; let a_w = {_at(w, 'w')};\n"
        f"let inside = a_d != {_NONE} && a_h != {_NONE} && a_w != {_NONE};\n"
        f"let xp = {base} + a_d * {w.expr(name + 'd')} + a_h * {w.expr(name + 'h')} + a_w * {w.expr(name + 'w')};\n"
    )


def _taps_loops(w: Words) -> str:
    return "".join(f"for (var k_{d} = 0u; k_{d} < {w.expr('k' + d)}; k_{d}++) {{\n" for d in "dhw")


def _unpack_output(w: Words, index: str, *lead: str) -> str:
    sizes = ["co"] * (len(lead) - 1) + ["od", "oh", "ow"]
    return unpack(index, [*lead, "o_d", "o_h", "o_w"], [w.expr(s) for s in sizes])


# ---------------------------------------------------------------------------------------------------- sum over taps


def correlate(
    graph: Graph,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    window: Window,
    groups: int,
    epilogue: Epilogue | None = None,
) -> None:
    """``out[n, c, o] = epilogue(bias[c] + Σ x[n, c', at(o, k)] · weight)``, five-dimensional, ``out`` new and contiguous."""
    epilogue = epilogue or Epilogue()
    if out.numel == 0:
        return
    if x.numel == 0 or weight.numel == 0:
        fill(graph, out, 0)
        return
    rows, channels, taps = out.sizes[1] // groups, x.sizes[1] // groups, product(weight.sizes[2:])
    # Strides of the weight along groups, output channels within a group, and summed channels.
    first, second = weight.strides[:2]
    steps = (channels * first, second, first) if window.transposed else (rows * first, first, second)

    def words(w: Words) -> None:
        _window_words(w, window, x, out.sizes[2:], weight.sizes[2:])
        _stride_words(w, "x", x)
        for name, value in zip(("wg", "wm", "wc", "wd", "wh", "ww"), (*steps, *weight.strides[2:]), strict=True):
            w.u32(name, value)
        w.u32("co", out.sizes[1])
        w.u32("channels", channels)
        w.u32("taps", taps)
        w.u32("plane", product(out.sizes[2:]))
        w.u32("bs", bias.strides[0] if bias is not None else 0)
        epilogue.words(w)

    args = [("x", x), ("wt", weight)] + ([("bias", bias)] if bias is not None else []) + epilogue.args()
    if rows < SMALLEST_TILED or channels * taps < SMALLEST_TILED:
        _direct(graph, out, args, words, window, rows, bias is not None, epilogue)
    else:
        _tiled_taps(graph, out, args, words, window, (rows, groups, channels), bias is not None, epilogue)


def _direct(
    graph: Graph, out: Tensor, args: Any, words: Any, window: Window, rows: int, biased: bool, epilogue: Epilogue
) -> None:
    """One invocation an output word: depthwise and narrow convolutions."""

    def all_words(w: Words) -> None:
        words(w)
        w.u32("rows", rows)

    def functions(w: Words) -> str:
        start = f"ld_bias(oc * {w.bs})" if biased else "0.0"
        return (
            _INSIDE[window.transposed]
            + epilogue.function(w)
            + "fn value_(i: u32) -> f32 {\n"
            + _unpack_output(w, "i", "b", "oc")
            + f"\nlet grp = oc / {w.rows}; let m = oc % {w.rows}; var acc = {start};\n"
            + f"let xb = b * {w.xn} + grp * {w.channels} * {w.xc}; let wb = grp * {w.wg} + m * {w.wm};\n"
            + _taps_loops(w)
            + _position(w, "xb", "x")
            + f"if (inside) {{\nlet wp = wb + k_d * {w.wd} + k_h * {w.wh} + k_w * {w.ww};\n"
            + f"for (var c = 0u; c < {w.channels}; c++) {{\n"
            + f"acc += ld_x(xp + c * {w.xc}) * ld_wt(wp + c * {w.wc});\n}}\n}}\n"
            + f"}}\n}}\n}}\nreturn finish_(acc, b, oc, i % {w.plane});\n}}"
        )

    gather(graph, "conv_direct", out, args, all_words, functions, (window.transposed, biased, epilogue.key))


def _tiled_taps(
    graph: Graph,
    out: Tensor,
    args: Any,
    words: Any,
    window: Window,
    shape: tuple[int, int, int],
    biased: bool,
    epilogue: Epilogue,
) -> None:
    """Implicit matrix product, output channels × positions; ``shape``: rows a group, groups, channels summed."""
    rows, groups, channels = shape
    plane = product(out.sizes[2:])
    columns = out.sizes[0] * plane
    tiles = tile_grid(rows, columns, groups)
    by_tap = channels >= DEPTH  # few channels would leave tiles mostly empty: then channels and taps form one axis
    packed = out.dtype.packed and plane % 2 == 0

    def all_words(w: Words) -> None:
        words(w)
        tile_words(w, rows, columns, tiles)

    def source(w: Words) -> str:
        head = _unpack_output(w, "col", "b") + f"\nlet xb = b * {w.xn} + grp * {w.channels} * {w.xc};\n"
        tap = f"k_d * {w.wd} + k_h * {w.wh} + k_w * {w.ww}"
        if by_tap:
            loops = (_taps_loops(w) + _position(w, "xb", "x") + f"let wp = grp * {w.wg} + {tap};\n", "}\n}\n}\n")
            right = f"if (inside) {{ v = ld_x(xp + k * {w.xc}); }}"
            left = f"v = ld_wt(wp + m * {w.wm} + k * {w.wc});"
            depth = w.channels
        else:
            split = unpack("k", ["c", "k_d", "k_h", "k_w"], [w.kd, w.kh, w.kw])
            loops = ("", "")
            right = f"{split}\n{_position(w, 'xb', 'x')}if (inside) {{ v = ld_x(xp + c * {w.xc}); }}"
            left = f"{split}\nv = ld_wt(grp * {w.wg} + m * {w.wm} + c * {w.wc} + {tap});"
            depth = f"({w.channels} * {w.taps})"
        store = _store_planes(w, tiles[0], out, packed, biased)
        functions = _INSIDE[window.transposed] + epilogue.function(w)
        return functions + tiled(w, tiles[0], head, loops, depth, left, right, store)

    operands = [("o", out, "p" if packed else "w"), *((name, t, "r") for name, t in args)]
    static = (tiles[0], by_tap, packed, window.transposed, biased, epilogue.key)
    graph.launch("conv_tiled", operands, all_words, source, grid(tiles[3], 1), static)


def _store_planes(w: Words, block: int, out: Tensor, packed: bool, biased: bool) -> list[str]:
    """Stores a register block into a contiguous (batch, channel, position) tensor; pairs share words if ``packed``."""
    rows = []
    for i in range(block):
        add = f"ld_bias(oc * {w.bs})" if biased else "0.0"
        lines = [f"let oc = grp * {w.rows} + row + {i}u; let add = {add};"]
        for j in range(0, block, 2 if packed else 1):
            col = f"(column + {offset(j)}u)"
            at = f"({col} / {w.plane} * {w.co} + oc) * {w.plane} + {col} % {w.plane}"

            def value(e: int, i: int = i, j: int = j, col: str = col) -> str:
                position = f"({col} + {e}u) % {w.plane}"
                return f"finish_(c{i}{j + e} + add, {col} / {w.plane}, oc, {position})"

            if packed:
                low, high = (wgsl.bits_of(out.dtype, value(e)) for e in range(2))
                action = f"st_o(({at}) / 2u, {low} | ({high} << 16u));"
            else:
                action = f"st_o({at}, {value(0)});"
            lines.append(f"if ({col} < {w.columns}) {{ {action} }}")
        rows.append("\n".join(lines))
    return rows


# ------------------------------------------------------------------------------------------------ sum over positions


def _correlate_weight(graph: Graph, a: Tensor, b: Tensor, out: Tensor, window: Window, groups: int) -> None:
    """``out[c, c', k] = Σ a[n, c, o] · b[n, c', at(o, k)]`` over batch and positions, within groups of channels."""
    if out.numel == 0:
        return
    if a.numel == 0 or b.numel == 0:
        fill(graph, out, 0)
        return
    rows, columns = a.sizes[1] // groups, product(out.sizes[1:])
    terms = a.sizes[0] * product(a.sizes[2:])
    tiles = tile_grid(rows, columns, groups)

    def words(w: Words) -> None:
        _window_words(w, window, b, a.sizes[2:], out.sizes[2:])
        _stride_words(w, "a", a)
        _stride_words(w, "b", b)
        w.u32("channels", out.sizes[1])
        w.u32("terms", terms)
        tile_words(w, rows, columns, tiles)

    def source(w: Words) -> str:
        head = unpack("col", ["c", "k_d", "k_h", "k_w"], [w.kd, w.kh, w.kw]) + (
            f"\nlet ab = grp * {w.rows} * {w.ac}; let bb = (grp * {w.channels} + c) * {w.bc};\n"
        )
        split = _unpack_output(w, "k", "s")
        left = f"{split}\nv = ld_a(ab + m * {w.ac} + s * {w.an} + o_d * {w.ad} + o_h * {w.ah} + o_w * {w.aw});"
        right = f"{split}\n{_position(w, f'bb + s * {w.bn}', 'b')}if (inside) {{ v = ld_b(xp); }}"
        at = f"(grp * {w.rows} + row + {{}}u) * {w.columns} + column + {{}}u"
        store = [
            "\n".join(
                f"if (column + {offset(j)}u < {w.columns}) {{ st_o({at.format(i, offset(j))}, c{i}{j}); }}"
                for j in range(tiles[0])
            )
            for i in range(tiles[0])
        ]
        return _INSIDE[False] + tiled(w, tiles[0], head, ("", ""), w.terms, left, right, store)

    args = [("o", out, "w"), ("a", a, "r"), ("b", b, "r")]
    graph.launch("conv_weight", args, words, source, grid(tiles[3], 1), tiles[0])


# ---------------------------------------------------------------------------------------------------- ops


def _check(graph: Graph, x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool, groups: int) -> None:
    def what() -> str:
        return f"{graph.op}: input {list(x.sizes)}, weight {list(weight.sizes)}, groups {groups}"

    if x.ndim != weight.ndim or not 3 <= x.ndim <= 5:
        raise RuntimeError(f"Expected an input and a weight of 3 to 5 dimensions each in {what()}")
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and t.dtype is not x.dtype:
            raise RuntimeError(f"Input type ({x.dtype.name}) and {name} type ({t.dtype.name}) should be the same")
    if not x.dtype.is_float:
        raise RuntimeError(f"\"convolution\" not implemented for '{x.dtype.name}'")
    expected = weight.sizes[0] if transposed else weight.sizes[1] * groups
    if x.sizes[1] != expected or groups < 1 or weight.sizes[0] % groups:
        raise RuntimeError(
            f"Given {what()}: expected input to have {expected} channels, but got {x.sizes[1]} channels instead"
        )
    channels = weight.sizes[1] * groups if transposed else weight.sizes[0]
    if bias is not None and bias.sizes != (channels,):
        raise RuntimeError(f"Given {what()}: expected bias to have shape [{channels}], but got {list(bias.sizes)}")


def _window(rank: int, stride: Any, padding: Any, dilation: Any, transposed: bool) -> Window:
    return Window(triple(stride, 1, rank), triple(padding, 0, rank), triple(dilation, 1, rank), transposed)


def _output_sizes(
    graph: Graph, x: Tensor, weight: Tensor, window: Window, extra: tuple[int, int, int], groups: int
) -> list[int]:
    sizes = []
    for i, (n, k) in enumerate(zip(x.sizes[2:], weight.sizes[2:], strict=True), 5 - x.ndim):
        s, p, reach = window.stride[i], window.padding[i], window.dilation[i] * (k - 1) + 1
        size = (n - 1) * s - 2 * p + reach + extra[i] if window.transposed else (n + 2 * p - reach) // s + 1
        if size < 1 and (window.transposed or n + 2 * p < reach):
            raise RuntimeError(
                f"Calculated padded input size per channel: ({n + 2 * p}). Kernel size: ({reach}). "
                "Kernel size can't be greater than actual input size "
                f"({graph.op}: input {list(x.sizes)}, weight {list(weight.sizes)})"
            )
        sizes.append(size)
    return [x.sizes[0], weight.sizes[1] * groups if window.transposed else weight.sizes[0], *sizes]


def geometry(
    graph: Graph,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> tuple[Window, list[int]]:
    """The window and the result's sizes of ``aten::convolution``'s arguments.

    Raises:
        RuntimeError: for arguments that do not fit.
    """
    _check(graph, x, weight, bias, transposed, groups)
    rank = x.ndim - 2
    window = _window(rank, stride, padding, dilation, transposed)
    return window, _output_sizes(graph, x, weight, window, triple(output_padding, 0, rank), groups)


@lower("convolution_overrideable")
def _convolution(
    graph: Graph,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    window, sizes = geometry(graph, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    out, rank = graph.new(sizes, x.dtype), x.ndim - 2
    correlate(graph, five(x, rank), five(weight, rank), bias, five(out, rank), window, groups)
    return out


@lower("convolution_backward_overrideable", out="out", results=3)
def _convolution_backward(
    graph: Graph,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Sequence[bool],
) -> list[Tensor]:
    from .batchnorm import channel_sum

    _check(graph, x, weight, None, transposed, groups)
    rank = x.ndim - 2
    window = _window(rank, stride, padding, dilation, transposed)
    grad5, x5, weight5 = five(grad, rank), five(x, rank), five(weight, rank)
    # A gradient that nobody asked for is an empty tensor.
    gx = graph.new(x.sizes if mask[0] else (0,), x.dtype)
    gw = graph.new(weight.sizes if mask[1] else (0,), weight.dtype)
    gb = channel_sum(graph, grad, grad.dtype) if mask[2] else graph.new((0,), grad.dtype)
    if mask[0]:
        correlate(graph, grad5, weight5, None, five(gx, rank), window.flipped(), groups)
    if mask[1]:
        a, b = (x5, grad5) if transposed else (grad5, x5)
        _correlate_weight(graph, a, b, five(gw, rank), window, groups)
    return [gx, gw, gb]
