"""Random numbers: Philox 4x32-10 counters from the device generator, turned into distributions on the device.

Element ``i`` (row-major) uses the counter ``offset + i / 4`` and its lane ``i % 4`` (64-bit draws: ``i / 2`` and two
lanes), whatever the grid, so a seed gives the same numbers on every adapter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import wgsl
from ..errors import LimitError
from ..kernels.pointwise import (
    LINEAR,
    MAIN,
    WORKGROUP,
    broadcast_shapes,
    collapse,
    compute,
    copy_into,
    float_dtype,
    index_code,
    index_words,
)
from ..pieces import margin
from ..recipe import Graph, Scalar, Tensor, Words, grid
from ..registry import lower
from ..runtime import target
from ..wgsl import BF16, BOOL, F16, F32, DType, cast
from .creation import fill

Number = Scalar | int | float

_MANTISSA = {F32: 24, F16: 11, BF16: 8}  # bits, the hidden one included


@dataclass(frozen=True)
class Draw:
    """How four words of randomness become elements.

    Attributes:
        name: with ``cls``, ``lanes`` and ``code`` it identifies the kernel.
        cls: class of the values.
        value: WGSL of element ``e`` (a literal in ``{e}``) from the words ``r`` (vec4<u32>); ``{name}`` for a number,
            ``{p}`` for the element of the parameter tensor.
        lanes: words an element takes, 1 or 2.
        numbers: uniform numbers by name, each with its class.
        setup: WGSL before the values, run once a counter.
    """

    name: str
    cls: str
    value: str
    lanes: int = 1
    numbers: dict[str, tuple[Number, str]] = field(default_factory=dict)
    setup: str = ""

    @property
    def per_counter(self) -> int:
        return 4 // self.lanes


def number_of(x: Number) -> int | float:
    """The value now; the recipe is then valid for it only."""
    return x.value if isinstance(x, Scalar) else x


def philox_code(w: Words, counter: str) -> str:
    """WGSL of the four words of counter number ``counter`` (u32) of this launch."""
    at = w.index["random"]
    seed, offset = (f"vec2<u32>({wgsl.word(at + k)}, {wgsl.word(at + k + 1)})" for k in (0, 2))
    return f"philox(vec4<u32>(add64({offset}, vec2<u32>({counter}, 0u)), 0u, 0u), {seed})"


def _whole_words(graph: Graph, out: Tensor) -> bool:
    """Whether a launch may write the packed elements of a flat tensor by whole words, all of which it owns."""
    if not out.dtype.packed or not out.contiguous or not out.aligned(4):
        return False
    return out.numel % out.dtype.per_word == 0 or graph.owns_last_word(out)


def _stores(w: Words, out: Tensor, name: str, values: Sequence[str], cls: str, whole: bool) -> str:
    """WGSL that writes the elements ``c * len(values)`` onwards of an output."""
    d, per = out.dtype, len(values)
    if whole:
        lines = []
        for k in range(0, per, d.per_word):
            parts = [
                f"({wgsl.bits_of(d, cast(values[k + e], cls, d.cls))} << {8 * d.itemsize * e}u)" for e in range(d.per_word)
            ]
            at = f"c * {per}u + {k}u"
            lines.append(f"if ({at} < {w.n}) {{ st_{name}(({at}) / {d.per_word}u, {' | '.join(parts)}); }}")
        return "\n".join(lines)
    return "\n".join(
        f"if (c * {per}u + {e}u < {w.n}) {{ st_{name}(at_{name}(c * {per}u + {e}u), {cast(v, cls, d.cls)}); }}"
        for e, v in enumerate(values)
    )


def _walker(w: Words, rank: int, name: str) -> str:
    """WGSL of ``at_<name>``: element index of the i-th element in row-major order."""
    if not rank:
        return f"fn at_{name}(i: u32) -> u32 {{ return i; }}\n"
    return f"fn at_{name}(i: u32) -> u32 {{ {index_code(w, rank, [name], 'i', name)} return x_{name}{name}; }}\n"


def _walk(t: Tensor) -> tuple[list[int], Sequence[int]]:
    """Collapsed sizes and strides of a tensor; empty where the linear index is the element index."""
    if t.contiguous:
        return [], []
    sizes, strides = collapse(t.sizes, [t.strides])
    if not sizes:
        return [1], [0]
    return sizes, strides[0]


def draw(
    graph: Graph,
    how: Draw,
    out: Tensor,
    generator: int,
    parameter: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Fills ``out`` with draws.

    Args:
        generator: position of the generator among the op's arguments, −1 if it takes none.
        parameter: a tensor of ``out``'s shape; its elements are ``{p}`` (class f).
        mask: a second, bool result: whether the element was kept (``{kept}`` in the expression's setup).
    """
    if out.numel == 0:
        return out
    tensors = {"o": out} | ({"p": parameter} if parameter is not None else {}) | ({"m": mask} if mask is not None else {})
    if max(t.extent * t.dtype.itemsize for t in tensors.values()) > margin():
        for part in _parts(tensors, how.per_counter):
            draw(graph, how, part["o"], generator, part.get("p"), part.get("m"))
        return out
    walks = {name: _walk(t) for name, t in tensors.items()}
    per = how.per_counter
    counters = -(-out.numel // per)
    whole = {name: per == 4 and _whole_words(graph, t) for name, t in tensors.items() if name != "p"}
    args = [(name, t, "r" if name == "p" else "p" if whole[name] else "w") for name, t in tensors.items()]

    def words(w: Words) -> None:
        w.u32("n", out.numel)
        w.u32("counters", counters)
        w.random("random", generator, counters)
        for name, (value, cls) in how.numbers.items():
            w.number(name, value, cls)
        for name, (sizes, strides) in walks.items():
            index_words(w, sizes, {name: strides}, name)

    def source(w: Words) -> str:
        return _draw_source(w, how, tensors, {name: len(sizes) for name, (sizes, _) in walks.items()}, whole)

    ranks = tuple(len(sizes) for sizes, _ in walks.values())
    static = (how.name, how.value, how.setup, how.cls, how.lanes, tuple(how.numbers), ranks)
    graph.launch("random", args, words, source, grid(counters, WORKGROUP), static)
    return out


def _parts(tensors: dict[str, Tensor], per: int) -> list[dict[str, Tensor]]:
    """Two parts in row-major order, of which the first takes whole counters, so that the numbers stay the same."""
    sizes = tensors["o"].sizes
    if all(t.contiguous for t in tensors.values()):
        sizes = (tensors["o"].numel,)
        tensors = {name: t.view(sizes, (1,)) for name, t in tensors.items()}
    dim = next(d for d, n in enumerate(sizes) if n > 1)
    rows = per // math.gcd(per, math.prod(sizes[dim + 1 :]))
    first = sizes[dim] // 2 // rows * rows
    if not first:
        raise LimitError(
            f"random numbers for a strided tensor of shape {list(sizes)}, which exceeds the largest storage binding of "
            f"{target().limits['maxStorageBufferBindingSize']} bytes and cannot be cut; fill a contiguous one"
        )
    cuts = ((0, first), (first, sizes[dim] - first))
    return [{name: t.narrow(dim, start, length) for name, t in tensors.items()} for start, length in cuts]


def _draw_source(w: Words, how: Draw, tensors: dict[str, Tensor], ranks: dict[str, int], whole: dict[str, bool]) -> str:
    per = how.per_counter
    numbers = {name: w.expr(name, cls) for name, (_, cls) in how.numbers.items()}
    head = "".join(_walker(w, rank, name) for name, rank in ranks.items())
    lines = []
    if "p" in tensors:
        load = cast("ld_p(at_p(i))", tensors["p"].dtype.cls, "f")
        lines += [
            f"var p{e} = 0.0; {{ let i = c * {per}u + {e}u; if (i < {w.n}) {{ p{e} = {load}; }} }}" for e in range(per)
        ]
    lines.append(how.setup.format(**numbers))
    for e in range(per):
        lines.append(f"let v{e} = {how.value.format(e=e, e2=2 * e + 1, e1=2 * e, p=f'p{e}', **numbers)};")
    lines.append(_stores(w, tensors["o"], "o", [f"v{e}" for e in range(per)], how.cls, whole["o"]))
    if "m" in tensors:
        lines.append(_stores(w, tensors["m"], "m", [f"keep[{e}]" for e in range(per)], "b", whole["m"]))
    return (
        head
        + MAIN.format(wg=WORKGROUP)
        + f"let c = {LINEAR.format(wg=WORKGROUP)};\nif (c >= {w.counters}) {{ return; }}\n"
        + f"let r = {philox_code(w, 'c')};\n"
        + "\n".join(lines)
        + "\n}"
    )


# ---------------------------------------------------------------------------------------------------- continuous


def _needs_float(d: DType, op: str) -> None:
    if not d.is_float:
        names = {"b": "Bool", "l": "Long", "i": "Int"}
        raise RuntimeError(f"\"{op}\" not implemented for '{names[d.cls]}'")


@lower("uniform_")
def _uniform(graph: Graph, x: Tensor, low: Number = 0.0, high: Number = 1.0, _generator: None = None) -> Tensor:
    """Uniform in [low, high): as many random bits as the dtype has, and ``low`` where rounding reaches ``high``."""
    _needs_float(x.dtype, "check_uniform_bounds")
    a, b = number_of(low), number_of(high)
    if not a <= b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    bits = _MANTISSA[x.dtype]
    rounded = {F32: "{v}", F16: "f16value(f16bits({v}))", BF16: "bitcast<f32>(bf16bits({v}) << 16u)"}[x.dtype]
    value = f"({{low}} + f32(r[{{e}}] >> {32 - bits}u) * {2.0**-bits!r} * ({{high}} - {{low}}))"
    inside = f"select({value}, {{low}}, {rounded.replace('{v}', value)} >= {{high}})"
    return draw(graph, Draw("uniform", "f", inside, numbers={"low": (low, "f"), "high": (high, "f")}), x, 3)


def _normal_draw(name: str, form: str, mean: Number, std: Number) -> Draw:
    """Box and Muller's transform of two pairs of words; ``form`` of a standard normal ``z[e]``."""
    return Draw(name, "f", form, numbers={"mean": (mean, "f"), "std": (std, "f")}, setup="let z = normal4(r);")


def _check_std(std: Number, op: str) -> None:
    if not number_of(std) >= 0:
        raise RuntimeError(f"{op} expects std >= 0.0, but found std {number_of(std)}")


@lower("normal_")
def _normal(graph: Graph, x: Tensor, mean: Number = 0.0, std: Number = 1.0, _generator: None = None) -> Tensor:
    _check_std(std, "normal")
    _needs_float(x.dtype, "normal_kernel")
    return draw(graph, _normal_draw("normal", "({mean} + {std} * z[{e}])", mean, std), x, 3)


@lower("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", inplace=False)
def _normal_of(graph: Graph, mean: Tensor | Number, std: Tensor | Number = 1.0, _generator: None = None) -> Tensor:
    """Normal variates whose mean or standard deviation differs from element to element."""
    if not isinstance(std, Tensor):
        _check_std(std, "normal")
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    dtype = tensors[0].dtype
    _needs_float(dtype, "normal_kernel")
    z = graph.new(broadcast_shapes(*(t.sizes for t in tensors)), F32)
    draw(graph, _normal_draw("normal", "({mean} + {std} * z[{e}])", 0.0, 1.0), z, 2)
    return compute(graph, "({0} + {1} * {2})", [mean, std, z], ["f"] * 3, "f", dtype, "normal")


@lower("log_normal_")
def _log_normal(graph: Graph, x: Tensor, mean: Number = 1.0, std: Number = 2.0, _generator: None = None) -> Tensor:
    if not number_of(std) > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={number_of(std)}")
    _needs_float(x.dtype, "log_normal")
    return draw(graph, _normal_draw("log_normal", "exp_({mean} + {std} * z[{e}])", mean, std), x, 3)


@lower("cauchy_")
def _cauchy(graph: Graph, x: Tensor, median: Number = 0.0, sigma: Number = 1.0, _generator: None = None) -> Tensor:
    """median + σ·tan(π(u − ½)), by the quantile function."""
    _needs_float(x.dtype, "cauchy")
    if not number_of(sigma) > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={number_of(sigma)}")
    angle = "(3.141592653589793 * (unit(r[{e}]) - 0.49999997))"
    value = f"({{median}} + {{sigma}} * sin_{angle} / cos_{angle})"
    return draw(graph, Draw("cauchy", "f", value, numbers={"median": (median, "f"), "sigma": (sigma, "f")}), x, 3)


@lower("exponential_")
def _exponential(graph: Graph, x: Tensor, rate: Number = 1.0, _generator: None = None) -> Tensor:
    """−ln(1 − u)/rate; at least the dtype's smallest number, so that dividing by it is safe."""
    _needs_float(x.dtype, "exponential")
    if not number_of(rate) > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={number_of(rate)}")
    least = {F16: 6.103515625e-05}.get(x.dtype, 1.1754944e-38)
    value = f"max(exponential(r[{{e}}]) / {{rate}}, {least!r})"
    return draw(graph, Draw("exponential", "f", value, numbers={"rate": (rate, "f")}), x, 2)


@lower("geometric_")
def _geometric(graph: Graph, x: Tensor, p: Number, _generator: None = None) -> Tensor:
    """Trials up to the first success: an exponential of rate −ln(1 − p), rounded up."""
    chance = number_of(p)
    if not 0 < chance < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={chance}")
    value = "max(ceil(exponential(r[{e}]) * {scale}), 1.0)"
    return draw(graph, Draw("geometric", "f", value, numbers={"scale": (-1 / math.log1p(-chance), "f")}), x, 2)


# ---------------------------------------------------------------------------------------------------- integers


def integers(graph: Graph, x: Tensor, low: int, count: int, generator: int) -> Tensor:
    """Uniform over ``low … low + count − 1``: the high half of draw · count (Lemire's method without rejection)."""
    if count == 1 << 64:
        return draw(graph, Draw("bits64", "l", "vec2<u32>(r[{e1}], r[{e2}])", lanes=2), x, generator)
    numbers: dict[str, tuple[Number, str]] = {"low": (low, "l"), "count": (count, "l")}
    if count <= 1 << 16:  # beyond, 32 bits would make some values visibly likelier than others
        value = "add64({low}, vec2<u32>(mulwide(r[{e}], {count}.x).y, 0u))"
        return draw(graph, Draw("integers32", "l", value, numbers=numbers), x, generator)
    value = "add64({low}, mulhigh64(vec2<u32>(r[{e1}], r[{e2}]), {count}))"
    return draw(graph, Draw("integers64", "l", value, lanes=2, numbers=numbers), x, generator)


def integer_range(d: DType) -> tuple[int, int]:
    """The integers ``random_`` may give in a dtype: floats stop where they no longer hold every integer."""
    if d.is_float:
        return -(1 << _MANTISSA[d]), 1 << _MANTISSA[d]
    if d is BOOL:
        return 0, 1
    bits = 8 * d.itemsize
    return (0, 255) if d is wgsl.U8 else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


@lower("random_")
def _random(graph: Graph, x: Tensor, _generator: None = None) -> Tensor:
    return integers(graph, x, 0, integer_range(x.dtype)[1] + 1, 1)


@lower("random_.to")
def _random_to(graph: Graph, x: Tensor, high: int, _generator: None = None) -> Tensor:
    return _random_between(graph, x, 0, high, 2)


@lower("random_.from")
def _random_from(graph: Graph, x: Tensor, low: int, high: int | None = None, _generator: None = None) -> Tensor:
    return _random_between(graph, x, low, high, 3)


def _random_between(graph: Graph, x: Tensor, low: int, high: int | None, generator: int) -> Tensor:
    least, most = integer_range(x.dtype)
    end = most + 1 if high is None else high
    if low >= end:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={end}")
    if x.dtype.is_float:
        least, most = (-(1 << 63), 1 << 63) if x.dtype is not F16 else (-65504, 65504)
    for name, value in (("from", low), ("to - 1", end - 1)):
        if not least <= value <= most:
            raise RuntimeError(f"{name} is out of bounds for {x.dtype.name}")
    return integers(graph, x, low, end - low, generator)


# ---------------------------------------------------------------------------------------------------- chances


def _check_chance(p: Number, op: str) -> None:
    if not 0 <= number_of(p) <= 1:
        raise RuntimeError(f"{op} expects p to be in [0, 1], but got p={number_of(p)}")


def _bernoulli_number(graph: Graph, out: Tensor, p: Number, generator: int) -> Tensor:
    _check_chance(p, "bernoulli_")
    return draw(graph, Draw("bernoulli", "b", "(unit(r[{e}]) < {chance})", numbers={"chance": (p, "f")}), out, generator)


def _bernoulli_tensor(graph: Graph, out: Tensor, p: Tensor, generator: int) -> Tensor:
    if not p.dtype.is_float:
        raise RuntimeError("expected probabilities tensor to have floating type")
    how = Draw("bernoulli_tensor", "b", "(unit(r[{e}]) < {p})")
    return draw(graph, how, out, generator, p.expand(out.sizes))


def _result(graph: Graph, sizes: tuple[int, ...], dtype: DType) -> Tensor:
    """Where an op's result goes: the call's target where its shape fits, else a new tensor."""
    target = graph.target
    return target if target is not None and target.sizes == sizes else graph.new(sizes, dtype)


@lower("bernoulli_.float")
def _bernoulli_in_place(graph: Graph, x: Tensor, p: Number = 0.5, _generator: None = None) -> Tensor:
    return _bernoulli_number(graph, x, p, 2)


@lower("bernoulli.p", out="float_out")
def _bernoulli_p(graph: Graph, x: Tensor, p: Number = 0.5, _generator: None = None) -> Tensor:
    return _bernoulli_number(graph, _result(graph, x.sizes, x.dtype), p, 2)


@lower("bernoulli.Tensor")
def _bernoulli_of(graph: Graph, x: Tensor, p: Tensor | Scalar, _generator: None = None) -> Tensor:
    if isinstance(p, Scalar):
        return _bernoulli_number(graph, _result(graph, x.sizes, x.dtype), p, 2)
    return _bernoulli_tensor(graph, _result(graph, x.sizes, x.dtype), p, 2)


@lower("bernoulli")
def _bernoulli(graph: Graph, p: Tensor, _generator: None = None) -> Tensor:
    return _bernoulli_tensor(graph, _result(graph, p.sizes, p.dtype), p, 1)


@lower("native_dropout", results=2)
def _native_dropout(graph: Graph, x: Tensor, p: Number, train: bool | None = None) -> tuple[Tensor, Tensor]:
    """Zeroes elements with probability p and scales the rest by 1/(1 − p); the mask says what was kept."""
    out, mask = graph.new(x.sizes, x.dtype), graph.new(x.sizes, BOOL)
    if train is False:
        copy_into(graph, x, out)
        return out, fill(graph, mask, True)
    _check_chance(p, "dropout")
    setup = "let u = vec4<f32>(unit(r.x), unit(r.y), unit(r.z), unit(r.w)); let keep = u >= vec4<f32>({rate});\n"
    setup += "let scale = select(1.0 / (1.0 - {rate}), 0.0, {rate} >= 1.0);"
    how = Draw("dropout", "f", "select(0.0, {p} * scale, keep[{e}])", numbers={"rate": (p, "f")}, setup=setup)
    draw(graph, how, out, -1, x, mask)
    return out, mask


@lower("native_dropout_backward")
def _native_dropout_backward(graph: Graph, grad: Tensor, mask: Tensor, scale: Number) -> Tensor:
    form = "({0} * {1} * {2})"  # not select: NaN stays
    return compute(graph, form, [grad, mask, scale], ["f", "f", "f"], "f", float_dtype(grad.dtype), "dropout_backward")
