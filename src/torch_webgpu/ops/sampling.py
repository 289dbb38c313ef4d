"""Sampling without parameters of a distribution: permutations and draws from given weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import wgsl
from ..kernels.pointwise import (
    LINEAR,
    MAIN,
    WORKGROUP,
    contiguous,
    copy_into,
)
from ..recipe import Graph, Tensor, Words, grid, product, register_error
from ..registry import fallback, lower
from ..wgsl import F32, I32, I64, DType, cast
from .random import integer_range, integers, philox_code
from .scan import scan
from .sort import sort_into


@lower("randperm.generator", out="generator_out")
def _randperm(graph: Graph, n: int, _generator: None = None, dtype: int | None = None, *_rest: object) -> Tensor:
    """Sorts positions by 64 random bits each; ties (likelier than 1 % from 6e8 elements) keep their order."""
    if n < 0:
        raise RuntimeError(f"n must be non-negative, got {n}")
    d = graph.target.dtype if graph.target is not None else I64 if dtype is None else wgsl.DTYPES[dtype]
    most = integer_range(d)[1]
    if n - 1 > most:
        raise RuntimeError(f"n is too large for result tensor type: '{d.name}'")
    places = graph.new((n,), I64)
    if n == 0:
        return places if d is I64 else graph.new((0,), d)
    keys = integers(graph, graph.new((n,), I64), -(1 << 63), 1 << 64, 1)
    sort_into(graph, keys, None, places, 0, False, n)
    if d is I64:
        return places
    out = graph.new((n,), d)
    copy_into(graph, places, out)
    return out


RACE_CHUNK = 2048  # categories a workgroup races through
RACE_GROUP = 256
_MESSAGES = {
    "bad": "probability tensor contains either `inf`, `nan` or element < 0",
    "none": "invalid multinomial distribution (sum of probabilities <= 0, or fewer non-zero ones than samples)",
}


def _error_code(args: Sequence[tuple[str, Tensor, str]], w: Words, name: str) -> str:
    """WGSL that reports an error; the error tensor is the last argument, alone in its binding."""
    slot = len({t.buffer for _, t, _ in args}) - 1
    return f"atomicStore(&B{slot}[0], {w.expr(name)});"


def _error_words(w: Words) -> None:
    for name, message in _MESSAGES.items():
        w.u32(name, register_error("RuntimeError", message))


_SCORE = """fn score(p: f32, r: u32) -> f32 {
  return select(0.0, p / exponential(r), p > 0.0);
}
fn valid(p: f32) -> bool {
  return !isnan_(p) && !isinf_(p) && p >= 0.0;
}
"""


@dataclass(frozen=True)
class _Sampling:
    """Rows of weights ``p`` (contiguous), ``rows`` of ``n``, and the position of the generator argument."""

    p: Tensor
    rows: int
    n: int
    generator: int = 3

    def scores(self, graph: Graph) -> Tensor:
        """p/E with E exponential: the largest ones are a sample without replacement (Efraimidis, Spirakis 2006)."""
        out = graph.new((self.rows, self.n), F32)
        total = self.rows * self.n
        counters = -(-total // 4)
        args = [("p", self.p, "r"), ("o", out, "w"), ("e", graph.error_tensor(), "a")]

        def words(w: Words) -> None:
            w.u32("n", total)
            w.u32("counters", counters)
            w.random("random", self.generator, counters)
            _error_words(w)

        def source(w: Words) -> str:
            load = cast("ld_p(i)", self.p.dtype.cls, "f")
            return (
                _SCORE
                + MAIN.format(wg=WORKGROUP)
                + f"""let c = {LINEAR.format(wg=WORKGROUP)};
if (c >= {w.counters}) {{ return; }}
let r = {philox_code(w, "c")};
for (var e = 0u; e < 4u; e++) {{
  let i = c * 4u + e;
  if (i < {w.n}) {{
    let p = {load};
    if (!valid(p)) {{ {_error_code(args, w, "bad")} }}
    st_o(i, score(p, r[e]));
  }}
}}
}}"""
            )

        graph.launch("multinomial_scores", args, words, source, grid(counters, WORKGROUP))
        return out

    def race(self, graph: Graph, out: Tensor) -> None:
        """One sample a row: the category with the greatest p/E."""
        chunks = -(-self.n // RACE_CHUNK)
        if chunks == 1:
            return self._race(graph, out, None, None, 1)
        best, place = graph.new((self.rows, chunks), F32), graph.new((self.rows, chunks), I32)
        self._race(graph, out, best, place, chunks)
        self._decide(graph, best, place, out, chunks)

    def _race(self, graph: Graph, out: Tensor, best: Tensor | None, place: Tensor | None, chunks: int) -> None:
        quads = -(-self.n // 4)
        args = [("p", self.p, "r")]
        args += [("o", out, "w")] if best is None or place is None else [("b", best, "w"), ("i", place, "w")]
        args.append(("e", graph.error_tensor(), "a"))

        def words(w: Words) -> None:
            w.u32("n", self.n)
            w.u32("quads", quads)
            w.u32("chunks", chunks)
            w.u32("groups", self.rows * chunks)
            w.random("random", self.generator, self.rows * quads)
            _error_words(w)

        def source(w: Words) -> str:
            finish = "st_b(b, S[0]); st_i(b, bitcast<i32>(I[0]));"
            if best is None:
                finish = f"if (S[0] <= 0.0) {{ {_error_code(args, w, 'none')} }} st_o(row, vec2<u32>(I[0], 0u));"
            per = RACE_CHUNK // 4
            return (
                _SCORE
                + _race_head()
                + f"""if (b >= {w.groups}) {{ return; }}
let row = b / {w.chunks}; let first = (b % {w.chunks}) * {per}u;
for (var q = first + l; q < min(first + {per}u, {w.quads}); q += {RACE_GROUP}u) {{
  let r = {philox_code(w, f"row * {w.quads} + q")};
  for (var e = 0u; e < 4u; e++) {{
    let j = q * 4u + e;
    if (j < {w.n}) {{
      let p = {cast(f"ld_p(row * {w.n} + j)", self.p.dtype.cls, "f")};
      if (!valid(p)) {{ {_error_code(args, w, "bad")} }}
      let s = score(p, r[e]);
      if (s > best) {{ best = s; place = j; }}
    }}
  }}
}}
"""
                + _race_tail(finish)
            )

        graph.launch("multinomial_race", args, words, source, grid(self.rows * chunks, 1), best is None)

    def _decide(self, graph: Graph, best: Tensor, place: Tensor, out: Tensor, chunks: int) -> None:
        args = [("b", best, "r"), ("i", place, "r"), ("o", out, "w"), ("e", graph.error_tensor(), "a")]

        def words(w: Words) -> None:
            w.u32("chunks", chunks)
            w.u32("groups", self.rows)
            _error_words(w)

        def source(w: Words) -> str:
            finish = f"if (S[0] <= 0.0) {{ {_error_code(args, w, 'none')} }} st_o(b, vec2<u32>(I[0], 0u));"
            return (
                _race_head()
                + f"""if (b >= {w.groups}) {{ return; }}
for (var c = l; c < {w.chunks}; c += {RACE_GROUP}u) {{
  let s = ld_b(b * {w.chunks} + c); let j = bitcast<u32>(ld_i(b * {w.chunks} + c));
  if (s > best || (s == best && j < place)) {{ best = s; place = j; }}
}}
"""
                + _race_tail(finish)
            )

        graph.launch("multinomial_decide", args, words, source, grid(self.rows, 1))

    def from_sums(self, graph: Graph, out: Tensor, samples: int) -> None:
        """Independent samples: where a uniform part of the total falls among the running sums."""
        sums = graph.new((self.rows, self.n), F32)
        scan(graph, "sum", self.p.reshape((self.rows, self.n)), 1, sums)
        total = self.rows * samples
        counters = -(-total // 4)
        args = [("p", self.p, "r"), ("s", sums, "r"), ("o", out, "w"), ("e", graph.error_tensor(), "a")]

        def words(w: Words) -> None:
            w.u32("n", self.n)
            w.u32("total", total)
            w.u32("samples", samples)
            w.u32("counters", counters)
            w.random("random", self.generator, counters)
            _error_words(w)

        graph.launch(
            "multinomial_search",
            args,
            words,
            lambda w: _search_source(w, self.p.dtype, _error_code(args, w, "none")),
            grid(counters, WORKGROUP),
        )

    def check(self, graph: Graph) -> None:
        """Reports weights that are no weights."""
        total = self.rows * self.n
        args = [("p", self.p, "r"), ("e", graph.error_tensor(), "a")]

        def words(w: Words) -> None:
            w.u32("n", total)
            _error_words(w)

        def source(w: Words) -> str:
            load = cast("ld_p(i)", self.p.dtype.cls, "f")
            return (
                _SCORE
                + MAIN.format(wg=WORKGROUP)
                + f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}\n"
                + f"if (!valid({load})) {{ {_error_code(args, w, 'bad')} }}\n}}"
            )

        graph.launch("multinomial_check", args, words, source, grid(total, WORKGROUP))


def _race_head() -> str:
    return (
        f"var<workgroup> S: array<f32, {RACE_GROUP}>;\nvar<workgroup> I: array<u32, {RACE_GROUP}>;\n"
        + MAIN.format(wg=RACE_GROUP)
        + "let b = g.y * n.x + g.x;\nvar best = 0.0; var place = 0xffffffffu;\n"
    )


def _race_tail(finish: str) -> str:
    """The workgroup's best (ties: the first) into ``S[0]`` and ``I[0]``, then ``finish`` by one invocation."""
    return f"""S[l] = best; I[l] = place;
workgroupBarrier();
for (var d = {RACE_GROUP // 2}u; d > 0u; d = d >> 1u) {{
  if (l < d && (S[l + d] > S[l] || (S[l + d] == S[l] && I[l + d] < I[l]))) {{ S[l] = S[l + d]; I[l] = I[l + d]; }}
  workgroupBarrier();
}}
if (l == 0u) {{ {finish} }}
}}"""


def _search_source(w: Words, d: DType, report: str) -> str:
    """Binary search in running sums; rounding may point at an empty category, so it walks on to one that is not."""
    weight = cast(f"ld_p(row * {w.n} + low)", d.cls, "f")
    return (
        MAIN.format(wg=WORKGROUP)
        + f"""let c = {LINEAR.format(wg=WORKGROUP)};
if (c >= {w.counters}) {{ return; }}
let r = {philox_code(w, "c")};
for (var e = 0u; e < 4u; e++) {{
  let i = c * 4u + e;
  if (i >= {w.total}) {{ return; }}
  let row = i / {w.samples};
  let sum = ld_s(row * {w.n} + {w.n} - 1u);
  if (!(sum > 0.0)) {{ {report} }}
  let u = f32(r[e]) * 2.3283064365386963e-10 * sum;
  var low = 0u; var high = {w.n};
  while (low < high) {{
    let m = (low + high) / 2u;
    if (ld_s(row * {w.n} + m) > u) {{ high = m; }} else {{ low = m + 1u; }}
  }}
  low = min(low, {w.n} - 1u);
  while (low + 1u < {w.n} && !({weight} > 0.0)) {{ low++; }}
  while (low > 0u && !({weight} > 0.0)) {{ low--; }}
  st_o(i, vec2<u32>(low, 0u));
}}
}}"""
    )


@lower("multinomial")
def _multinomial(graph: Graph, p: Tensor, samples: int, replacement: bool = False, _generator: None = None) -> Tensor:
    if p.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not p.dtype.is_float:
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {p.dtype.name}")
    n = p.sizes[-1]
    if samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and samples > n:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    out = graph.new((*p.sizes[:-1], samples), I64)
    rows = product(p.sizes[:-1])
    if rows == 0:
        return out
    if n == 0:
        raise RuntimeError(_MESSAGES["none"])
    sampling = _Sampling(contiguous(graph, p), rows, n)
    if samples == 1:
        sampling.race(graph, out)
    elif replacement:
        sampling.check(graph)
        sampling.from_sums(graph, out, samples)
    else:
        scores = sampling.scores(graph)
        values = graph.new((rows, samples), F32)
        sort_into(graph, scores, values, out.reshape((rows, samples)), 1, True, samples)
        _require_positive(graph, values)
    return out


def _require_positive(graph: Graph, values: Tensor) -> None:
    """Reports an error if a chosen score is zero: there were not enough categories to draw."""
    args = [("v", values, "r"), ("e", graph.error_tensor(), "a")]

    def words(w: Words) -> None:
        w.u32("n", values.numel)
        _error_words(w)

    def source(w: Words) -> str:
        return (
            MAIN.format(wg=WORKGROUP)
            + f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}\n"
            + f"if (ld_v(i) <= 0.0) {{ {_error_code(args, w, 'none')} }}\n}}"
        )

    graph.launch("multinomial_enough", args, words, source, grid(values.numel, WORKGROUP))


fallback(
    "distributions drawn by rejection, for which the CPU's generator serves",
    "poisson",
    "binomial",
    "_standard_gamma",
    "_sample_dirichlet",
)
