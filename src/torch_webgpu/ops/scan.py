"""Running sums, products, extrema and log-sum-exps along one dimension.

Short rows are walked by one invocation each. Long ones are scanned by blocks: a workgroup adds up its block, the
blocks' totals are scanned in the same way, and a last pass scans every block after what came before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP
from ..recipe import Graph, Tensor, Words, grid
from ..registry import lower
from ..wgsl import F32, I32, I64, cast
from .sort import Rows, lined, normal_dim

SCAN_GROUP = 256
PER_THREAD = 4
SCAN_BLOCK = SCAN_GROUP * PER_THREAD
SERIAL = 64  # elements up to which one invocation does the whole row
SERIAL_ROWS = 4096  # with so many rows, eight times longer ones too

_COMBINE = {
    ("sum", "f"): ("a + b", "0.0"),
    ("sum", "i"): ("a + b", "0"),
    ("sum", "l"): ("add64(a, b)", "vec2<u32>(0u)"),
    ("prod", "f"): ("a * b", "1.0"),
    ("prod", "i"): ("a * b", "1"),
    ("prod", "l"): ("mul64(a, b)", "vec2<u32>(1u, 0u)"),
    ("logsumexp", "f"): ("logaddexp(a, b)", "-inf_()"),
}


@dataclass(frozen=True)
class _Scan:
    """Running combination along a dimension: ``o[j] = x[0] ∘ … ∘ x[j]``, in ``cls`` arithmetic."""

    kind: str
    cls: str
    x: Tensor
    out: Tensor
    dim: int

    def prelude(self) -> str:
        t = wgsl.TYPE[self.cls]
        return f"fn join(a: {t}, b: {t}) -> {t} {{ return {_COMBINE[self.kind, self.cls][0]}; }}\n"

    def load(self, index: str) -> str:
        return cast(f"ld_x({index})", self.x.dtype.cls, self.cls)

    def store(self, index: str, value: str) -> str:
        return f"st_o({index}, {cast(value, self.cls, self.out.dtype.cls)});"

    def run(self, graph: Graph) -> None:
        """Records the dispatches."""
        rows = Rows.of(self.dim, x=self.x, o=self.out)
        n = self.x.sizes[self.dim]
        if rows.count == 0 or n == 0:
            return
        if n <= SERIAL or (n <= 8 * SERIAL and rows.count >= SERIAL_ROWS):
            return self._serial(graph, rows, n)
        blocks = -(-n // SCAN_BLOCK)
        if blocks == 1:
            return self._blocks(graph, rows, n, None, totals=False)
        state = {"f": F32, "i": I32, "l": I64}[self.cls]
        totals, running = graph.new((rows.count, blocks), state), graph.new((rows.count, blocks), state)
        self._blocks(graph, rows, n, totals, totals=True)
        _Scan(self.kind, self.cls, totals, running, 1).run(graph)
        self._blocks(graph, rows, n, running, totals=False)

    def _serial(self, graph: Graph, rows: Rows, n: int) -> None:
        def words(w: Words) -> None:
            w.u32("n", n)
            w.u32("rows", rows.count)
            rows.words(w)

        def source(w: Words) -> str:
            return (
                self.prelude()
                + MAIN.format(wg=WORKGROUP)
                + f"""let row = {LINEAR.format(wg=WORKGROUP)};
if (row >= {w.rows}) {{ return; }}
{rows.code(w, "row")}
var a = {self.load("x_x")};
{self.store("x_o", "a")}
for (var j = 1u; j < {w.n}; j++) {{
  a = join(a, {self.load(rows.at(w, "x", "j"))});
  {self.store(rows.at(w, "o", "j"), "a")}
}}
}}"""
            )

        args = [("x", self.x, "r"), ("o", self.out, "w")]
        graph.launch("scan_rows", args, words, source, grid(rows.count, WORKGROUP), (self.kind, self.cls, rows.rank))

    def _blocks(self, graph: Graph, rows: Rows, n: int, carry: Tensor | None, totals: bool) -> None:
        """Scans blocks, starting from ``carry`` of the block before; or only writes their totals into ``carry``."""
        blocks = -(-n // SCAN_BLOCK)

        def words(w: Words) -> None:
            w.u32("n", n)
            w.u32("groups", rows.count * blocks)
            w.u32("blocks", blocks)
            rows.words(w)

        args = [("x", self.x, "r")]
        if not totals:
            args.append(("o", self.out, "w"))
        if carry is not None:
            args.append(("c", carry, "w" if totals else "r"))
        static = (self.kind, self.cls, rows.rank, carry is None, totals)
        source = self._block_source(rows, carry is not None and not totals, totals)
        graph.launch("scan_blocks", args, words, source, grid(rows.count * blocks, 1), static)

    def _block_source(self, rows: Rows, carried: bool, totals: bool) -> Callable[[Words], str]:
        def source(w: Words) -> str:
            first = _COMBINE[self.kind, self.cls][1]
            lines = [f"v[{e}] = join(v[{e - 1}], v[{e}]);" for e in range(1, PER_THREAD)]
            put = [
                f"if (at + {e}u < {w.n}) {{ {self.store(rows.at(w, 'o', f'at + {e}u'), f'join(before, v[{e}])')} }}"
                for e in range(PER_THREAD)
            ]
            finish = f"if (l == {SCAN_GROUP - 1}u) {{ st_c(b, S[l]); }}"
            if not totals:
                carry = f"if (b % {w.blocks} > 0u) {{ before = join(ld_c(b - 1u), before); }}" if carried else ""
                finish = f"var before = {first}; if (l > 0u) {{ before = S[l - 1u]; }}\n{carry}\n" + "\n".join(put)
            t = wgsl.TYPE[self.cls]
            return (
                self.prelude()
                + f"var<workgroup> S: array<{t}, {SCAN_GROUP}>;\n"
                + MAIN.format(wg=SCAN_GROUP)
                + f"""let b = g.y * n.x + g.x;
if (b >= {w.groups}) {{ return; }}
let row = b / {w.blocks};
{rows.code(w, "row")}
let at = (b % {w.blocks}) * {SCAN_BLOCK}u + l * {PER_THREAD}u;
var v: array<{t}, {PER_THREAD}>;
for (var e = 0u; e < {PER_THREAD}u; e++) {{
  v[e] = {first};
  if (at + e < {w.n}) {{ v[e] = {self.load(rows.at(w, "x", "at + e"))}; }}
}}
{chr(10).join(lines)}
S[l] = v[{PER_THREAD - 1}];
workgroupBarrier();
for (var d = 1u; d < {SCAN_GROUP}u; d = d << 1u) {{
  var sum = S[l];
  if (l >= d) {{ sum = join(S[l - d], sum); }}
  workgroupBarrier();
  S[l] = sum;
  workgroupBarrier();
}}
{finish}
}}"""
            )

        return source


def scan(graph: Graph, kind: str, x: Tensor, dim: int, out: Tensor) -> None:
    """``out[j] = x[0] ∘ … ∘ x[j]`` along a dimension; ``kind`` is ``sum`` or ``prod``."""
    cls = "i" if out.dtype.cls == "b" else out.dtype.cls
    _Scan(kind, cls, lined(x), lined(out), dim).run(graph)


def _cumulative(graph: Graph, kind: str, x: Tensor, dim: int, dtype: int | None) -> Tensor:
    d = normal_dim(dim, x.ndim)
    result = wgsl.DTYPES[dtype] if dtype is not None else x.dtype if x.dtype.is_float else I64
    out = graph.new(x.sizes, result)
    scan(graph, kind, x, d, out)
    return out


@lower("cumsum")
def _cumsum(graph: Graph, x: Tensor, dim: int, dtype: int | None = None) -> Tensor:
    return _cumulative(graph, "sum", x, dim, dtype)


@lower("cumprod")
def _cumprod(graph: Graph, x: Tensor, dim: int, dtype: int | None = None) -> Tensor:
    return _cumulative(graph, "prod", x, dim, dtype)


@lower("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(graph: Graph, x: Tensor, dim: int) -> Tensor:
    if not x.dtype.is_float:
        raise RuntimeError(f"logcumsumexp is not implemented for '{x.dtype.name}'")
    return _cumulative(graph, "logsumexp", x, dim, None)


# ---------------------------------------------------------------------------------------------------- running extrema


def _extremum_helpers(cls: str, largest: bool) -> str:
    """WGSL of ``later``: of two positions of a row the one that holds; ties go to the second, NaN stays. −1 is none."""
    reached = {"f": "q >= p", "i": "q >= p", "l": "!lt64(q, p)"}[cls]
    if not largest:
        reached = {"f": "q <= p", "i": "q <= p", "l": "!lt64(p, q)"}[cls]
    if cls == "f":
        reached = f"isnan_(q) || (!isnan_(p) && {reached})"
    return (
        "fn later(a: i32, b: i32) -> i32 {\n if (b < 0) { return a; }\n if (a < 0) { return b; }\n"
        f"let p = value(a); let q = value(b);\nreturn select(a, b, {reached}); }}\n"
    )


def _running_extremum(graph: Graph, x: Tensor, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """One workgroup walks a row block by block; the state is the position of the extremum so far."""
    d = normal_dim(dim, x.ndim)
    values, indices = graph.new(x.sizes, x.dtype), graph.new(x.sizes, I64)
    rows = Rows.of(d, x=lined(x), v=lined(values), i=lined(indices))
    n = lined(x).sizes[d]
    if rows.count == 0 or n == 0:
        return values, indices
    cls = "i" if x.dtype.cls == "b" else x.dtype.cls

    def words(w: Words) -> None:
        w.u32("n", n)
        w.u32("rows", rows.count)
        rows.words(w)

    def source(w: Words) -> str:
        load = cast(f"ld_x(base + u32(j) * {w.expr('x_step')})", x.dtype.cls, cls)
        return (
            "var<private> base: u32;\n"
            f"fn value(j: i32) -> {wgsl.TYPE[cls]} {{ return {load}; }}\n"
            + _extremum_helpers(cls, largest)
            + f"var<workgroup> S: array<i32, {SCAN_GROUP}>;\n"
            + MAIN.format(wg=SCAN_GROUP)
            + f"""let row = g.y * n.x + g.x;
if (row >= {w.rows}) {{ return; }}
{rows.code(w, "row")}
base = x_x;
var before = -1;
for (var first = 0u; first < {w.n}; first += {SCAN_GROUP}u) {{
  let j = first + l;
  S[l] = select(-1, i32(j), j < {w.n});
  workgroupBarrier();
  for (var d = 1u; d < {SCAN_GROUP}u; d = d << 1u) {{
    var best = S[l];
    if (l >= d) {{ best = later(S[l - d], best); }}
    workgroupBarrier();
    S[l] = best;
    workgroupBarrier();
  }}
  let best = later(before, S[l]);
  before = later(before, S[{SCAN_GROUP - 1}]);
  if (j < {w.n}) {{
    st_v({rows.at(w, "v", "j")}, ld_x({rows.at(w, "x", "u32(best)")}));
    st_i({rows.at(w, "i", "j")}, vec2<u32>(u32(best), 0u));
  }}
  workgroupBarrier();
}}
}}"""
        )

    args = [("x", x, "r"), ("v", values, "w"), ("i", indices, "w")]
    graph.launch("running_extremum", args, words, source, grid(rows.count, 1), (largest, rows.rank))
    return values, indices


@lower("cummax", results=2)
def _cummax(graph: Graph, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running_extremum(graph, x, dim, True)


@lower("cummin", results=2)
def _cummin(graph: Graph, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running_extremum(graph, x, dim, False)
