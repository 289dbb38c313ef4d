"""Sorting, selection and binary search along one dimension.

Sorting compares unsigned keys whose order is PyTorch's order of the values (NaN after everything), and is stable: a
workgroup sorts a block in shared memory by merging runs of 1, 2, 4, … elements, later dispatches merge the blocks. In a
merge every element finds its place by binary search in the other run. topk keeps the first elements of every chunk and
goes on with those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, collapse, index_code, index_words
from ..recipe import Graph, Tensor, Words, grid, power_of_two, product
from ..registry import lower
from ..wgsl import I32, I64, DType

BLOCK = 1024  # elements a workgroup sorts; with 64-bit keys and positions 12 KiB of shared memory
SMALL_BLOCK = 64
SORT_GROUP = 256
MOST_SELECTED = 512  # up to here topk keeps the best of every block, beyond it sorts everything
MOST_NARROWED = 64  # elements an invocation looks through where few are kept

_NO_KEY = {"u32": "0xffffffffu", "vec2<u32>": "vec2<u32>(0xffffffffu)"}


# ---------------------------------------------------------------------------------------------------- rows


def normal_dim(dim: int, ndim: int) -> int:
    """A dimension counted from the front; raises IndexError as PyTorch words it."""
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return dim % n


@dataclass(frozen=True)
class Rows:
    """Tensors cut into rows along one dimension; they agree in all other dimensions.

    Attributes:
        count: number of rows.
        sizes: the other dimensions, collapsed.
        starts: for each tensor, its strides over ``sizes``.
        steps: for each tensor, its stride along the row.
    """

    count: int
    sizes: list[int]
    starts: dict[str, Sequence[int]]
    steps: dict[str, int]

    @staticmethod
    def of(dim: int, **tensors: Tensor) -> Rows:
        """The rows of some tensors with at least one dimension."""
        first = next(iter(tensors.values()))
        others = [d for d in range(first.ndim) if d != dim]
        shape = [first.sizes[d] for d in others]
        sizes, strides = collapse(shape, [[t.strides[d] for d in others] for t in tensors.values()])
        starts: dict[str, Sequence[int]] = dict(zip(tensors, strides, strict=True))
        return Rows(product(shape), sizes, starts, {name: t.strides[dim] for name, t in tensors.items()})

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def words(self, w: Words) -> None:
        """The uniform words that ``code`` and ``at`` read."""
        index_words(w, self.sizes, self.starts)
        for name, step in self.steps.items():
            w.u32(f"{name}_step", step)

    def code(self, w: Words, row: str) -> str:
        """WGSL that finds where row ``row`` begins in every tensor."""
        return index_code(w, self.rank, list(self.starts), row)

    def at(self, w: Words, name: str, index: str) -> str:
        """Element index of position ``index`` (u32) of the current row."""
        return f"x_{name} + ({index}) * {w.expr(f'{name}_step')}"


def lined(t: Tensor) -> Tensor:
    """A tensor with a dimension to work along: a 0-dim one becomes a vector of one element."""
    return t if t.ndim else t.view((1,), (1,))


# ---------------------------------------------------------------------------------------------------- keys


def _key_type(d: DType) -> str:
    return "vec2<u32>" if d is I64 else "u32"


def _key_function(d: DType) -> str:
    """WGSL of ``key_of``: a value's key; ascending keys are ascending values, NaN is the greatest, −0 equals 0."""
    body = {
        "f": "let b = bitcast<u32>(v); let a = b & 0x7fffffffu; if (a > 0x7f800000u) { return 0xffffffffu; }\n"
        "if (a == 0u) { return 0x80000000u; } return select(b | 0x80000000u, ~b, (b >> 31u) == 1u);",
        "i": "return bitcast<u32>(v) ^ 0x80000000u;",
        "b": "return select(0u, 1u, v);",
        "l": "return vec2<u32>(v.x, v.y ^ 0x80000000u);",
    }[d.cls]
    return f"fn key_of(v: {wgsl.TYPE[d.cls]}) -> {_key_type(d)} {{ {body} }}\n"


def _less_function(key: str) -> str:
    """WGSL of ``less``: whether one (key, position) comes before another."""
    below, equal = ("ult64(a, b)", "eq64(a, b)") if key != "u32" else ("a < b", "a == b")
    return f"fn less(a: {key}, p: u32, b: {key}, q: u32) -> bool {{ return ({below}) || (({equal}) && p < q); }}\n"


@dataclass(frozen=True)
class _Runs:
    """Sorted or selected (key, position) pairs, ``length`` a row."""

    keys: Tensor
    places: Tensor
    length: int

    @staticmethod
    def new(graph: Graph, rows: int, length: int, d: DType) -> _Runs:
        shape = (rows, length)
        return _Runs(graph.new(shape, I64 if d is I64 else I32), graph.new(shape, I32), length)

    def args(self, suffix: str, mode: str) -> list[tuple[str, Tensor, str]]:
        return [(f"k{suffix}", self.keys, mode), (f"j{suffix}", self.places, mode)]


def _load_key(name: str, index: str, key: str) -> str:
    load = f"ld_{name}({index})"
    return load if key != "u32" else f"bitcast<u32>({load})"


def _store_pair(suffix: str, index: str, key_value: str, place: str, key: str) -> str:
    value = key_value if key != "u32" else f"bitcast<i32>({key_value})"
    return f"st_k{suffix}({index}, {value}); st_j{suffix}({index}, bitcast<i32>({place}));"


# ---------------------------------------------------------------------------------------------------- sorting


@dataclass(frozen=True)
class _Sorting:
    """One sort or selection along rows of ``x``; results are ``values`` (may be absent) and ``indices``."""

    x: Tensor
    values: Tensor | None
    indices: Tensor
    dim: int
    descending: bool
    keep: int

    @property
    def length(self) -> int:
        return self.x.sizes[self.dim]

    def rows(self) -> Rows:
        named = {"x": self.x, "i": self.indices}
        if self.values is not None:
            named["v"] = self.values
        return Rows.of(self.dim, **named)

    def args(self) -> list[tuple[str, Tensor, str]]:
        results = [("i", self.indices, "w")]
        if self.values is not None:
            results.append(("v", self.values, "w"))
        return [("x", self.x, "r"), *results]

    def store(self, rows: Rows, w: Words, position: str, place: str) -> str:
        """WGSL that writes results at a position of the current row."""
        code = f"st_i({rows.at(w, 'i', position)}, vec2<u32>({place}, 0u));"
        if self.values is not None:
            code += f" st_v({rows.at(w, 'v', position)}, ld_x({rows.at(w, 'x', place)}));"
        return code

    def run(self, graph: Graph) -> None:
        """Records the dispatches."""
        rows = self.rows()
        if rows.count == 0 or self.keep == 0:
            return
        n, d = self.length, self.x.dtype
        if n <= BLOCK:
            self._sort_blocks(graph, rows, None, None, self.keep)
        elif self.keep <= MOST_SELECTED:
            per = min(BLOCK // power_of_two(self.keep), MOST_NARROWED)
            per = per if per * SORT_GROUP > BLOCK else 0
            chunk = per * SORT_GROUP or BLOCK
            runs: _Runs | None = None
            while n > chunk:
                chosen = _Runs.new(graph, rows.count, -(-n // chunk) * self.keep, d)
                self._sort_blocks(graph, rows, runs, chosen, self.keep, per)
                runs, n = chosen, chosen.length
            self._sort_blocks(graph, rows, runs, None, self.keep, per)
        else:
            blocks = -(-n // BLOCK) * BLOCK
            runs = _Runs.new(graph, rows.count, blocks, d)
            self._sort_blocks(graph, rows, None, runs, BLOCK)
            self._merge_all(graph, rows, runs)

    def _sort_blocks(
        self, graph: Graph, rows: Rows, source: _Runs | None, sink: _Runs | None, keep: int, per: int = 0
    ) -> None:
        """Writes the first elements of each block, sorted; from ``x`` or ``source``, to ``sink`` or the results.

        Args:
            keep: how many elements of a block.
            per: elements an invocation looks through (``_narrow_block``); 0 to sort whole blocks.
        """
        n = source.length if source else self.length
        size = SMALL_BLOCK if n <= SMALL_BLOCK and not per else BLOCK
        chunk = SORT_GROUP * per or size
        blocks = -(-n // chunk)
        full = keep if per else size if blocks > 1 else n
        group = min(SORT_GROUP, size // 2)
        args = [] if sink and source else self.args() if not sink else [("x", self.x, "r")]
        args += (source.args("s", "r") if source else []) + (sink.args("t", "w") if sink else [])

        def words(w: Words) -> None:
            for name, value in {"n": n, "groups": rows.count * blocks, "blocks": blocks, "chunk": chunk}.items():
                w.u32(name, value)
            w.u32("network", power_of_two(max(full, 2)))
            w.u32("keep", keep)
            w.u32("per", per)
            w.u32("flip", 0xFFFFFFFF if self.descending else 0)
            rows.words(w)

        def wgsl_of(w: Words) -> str:
            load, store = self._block_io(rows, w, source, sink)
            key = _key_type(self.x.dtype)
            body = (_narrow_block if per else _sort_block)(w, size, group, key, load, store)
            return _block_head(w, size, group, key, self.x.dtype) + rows.code(w, "row") + "\n" + body

        static = (size, per > 0, source is None, sink is None, rows.rank, self.values is None)
        graph.launch("sort_blocks", args, words, wgsl_of, grid(rows.count * blocks, 1), static)

    def _block_io(self, rows: Rows, w: Words, source: _Runs | None, sink: _Runs | None) -> tuple[str, str]:
        """WGSL that sets ``key`` and ``place`` for position ``at``, and that stores pair ``e`` of block ``b``."""
        key = _key_type(self.x.dtype)
        if source:
            at = f"row * {w.n} + at"
            load = f"key = {_load_key('ks', at, key)}; place = bitcast<u32>(ld_js({at}));"
        else:
            flip = w.flip if key == "u32" else f"vec2<u32>({w.flip})"
            load = f"key = key_of(ld_x({rows.at(w, 'x', 'at')})) ^ {flip}; place = at;"
        if sink:
            return load, _store_pair("t", f"b * {w.keep} + e", "K[e]", "J[e]", key)
        return load, self.store(rows, w, "e", "J[e]")

    def _merge_all(self, graph: Graph, rows: Rows, runs: _Runs) -> None:
        run = BLOCK
        spare = _Runs.new(graph, rows.count, runs.length, self.x.dtype)
        while run * 2 < runs.length:
            self._merge(graph, rows, runs, spare, run)
            runs, spare, run = spare, runs, run * 2
        self._merge(graph, rows, runs, None, run)

    def _merge(self, graph: Graph, rows: Rows, source: _Runs, sink: _Runs | None, run: int) -> None:
        """Merges neighbouring runs of ``run`` elements; the last merge writes the results.

        Equal keys need no look at positions: all of the left run lie before those of the right one.
        """
        key = _key_type(self.x.dtype)
        n, total = source.length, rows.count * source.length
        args = source.args("s", "r") + (sink.args("t", "w") if sink else self.args())

        def words(w: Words) -> None:
            w.u32("n", n)
            w.u32("total", total)
            w.u32("run", run)
            w.u32("keep", self.keep)
            rows.words(w)

        def wgsl_of(w: Words) -> str:
            position = "start + before + (at & (run - 1u))"
            if sink:
                put = _store_pair("t", f"row * {w.n} + {position}", "key", "place", key)
            else:
                put = (
                    f"let to = {position}; if (to >= {w.keep}) {{ return; }}\n{rows.code(w, 'row')}\n"
                    f"{self.store(rows, w, 'to', 'place')}"
                )
            return (
                _less_function(key)
                + MAIN.format(wg=WORKGROUP)
                + f"""let t = {LINEAR.format(wg=WORKGROUP)};
if (t >= {w.total}) {{ return; }}
let row = t / {w.n}; let at = t % {w.n}; let run = {w.run};
let key = {_load_key("ks", "t", key)}; let place = bitcast<u32>(ld_js(t));
let start = at & ~(2u * run - 1u);
let middle = min(start + run, {w.n});
let left = at < middle;
let other = select(start, middle, left);
var low = other; var high = select(middle, min(start + 2u * run, {w.n}), left);
while (low < high) {{
  let m = (low + high) / 2u;
  let there = {_load_key("ks", f"row * {w.n} + m", key)};
  if (less(there, select(0u, 1u, left), key, 1u)) {{ low = m + 1u; }} else {{ high = m; }}
}}
let before = low - other;
{put}
}}"""
            )

        static = (sink is None, rows.rank, self.values is None)
        graph.launch("merge_runs", args, words, wgsl_of, grid(total, WORKGROUP), static)


def _block_head(w: Words, size: int, group: int, key: str, d: DType) -> str:
    return (
        _key_function(d)
        + _less_function(key)
        + f"var<workgroup> K: array<{key}, {size}>;\nvar<workgroup> J: array<u32, {size}>;\n"
        + "var<workgroup> found: atomic<u32>;\nvar<workgroup> total: u32;\n"
        + MAIN.format(wg=group)
        + f"let b = g.y * n.x + g.x;\nif (b >= {w.groups}) {{ return; }}\n"
        + f"let row = b / {w.blocks}; let first = (b % {w.blocks}) * {w.chunk};\n"
    )


def _network(size: str, group: int) -> str:
    """Batcher's bitonic network over the first ``size`` (a power of two, uniform) shared pairs."""
    return f"""for (var k = 2u; k <= {size}; k = k << 1u) {{
  for (var d = k >> 1u; d > 0u; d = d >> 1u) {{
    for (var e = l; e < {size} / 2u; e += {group}u) {{
      let i = ((e & ~(d - 1u)) << 1u) | (e & (d - 1u)); let j = i | d;
      let ka = K[i]; let kb = K[j]; let pa = J[i]; let pb = J[j];
      if (less(kb, pb, ka, pa) == ((i & k) == 0u)) {{ K[i] = kb; K[j] = ka; J[i] = pb; J[j] = pa; }}
    }}
    workgroupBarrier();
  }}
}}
"""


def _merges(size: int, group: int, network: str) -> str:
    """Sorts the first ``network`` shared pairs stably: runs of 1, 2, 4, … merge, each element finding its place."""
    find, put = "", ""
    for t in range(size // group):
        find += f"""let e{t} = l + {t * group}u; let k{t} = K[e{t}]; let j{t} = J[e{t}]; var to{t} = e{t};
if (e{t} < {network}) {{
  let left = (e{t} & run) == 0u; let other = (e{t} ^ run) & ~(run - 1u); var low = other; var high = other + run;
  while (low < high) {{
    let m = (low + high) / 2u;
    if (less(K[m], select(0u, 1u, left), k{t}, 1u)) {{ low = m + 1u; }} else {{ high = m; }}
  }}
  to{t} = min(other, e{t} & ~(run - 1u)) + (e{t} & (run - 1u)) + low - other;
}}
"""
        put += f"K[to{t}] = k{t}; J[to{t}] = j{t};\n"
    return f"""for (var run = 1u; run < {network}; run = run << 1u) {{
{find}workgroupBarrier();
{put}workgroupBarrier();
}}
"""


def _sort_block(w: Words, size: int, group: int, key: str, load: str, store: str) -> str:
    """A workgroup sorts its block; the pairs that fill up the network come after all others."""
    return f"""for (var e = l; e < {w.network}; e += {group}u) {{
  let at = first + e;
  var key = {_NO_KEY[key]}; var place = 0xffffffffu;
  if (at < {w.n}) {{ {load} }}
  K[e] = key; J[e] = place;
}}
workgroupBarrier();
{_merges(size, group, w.network)}
for (var e = l; e < {w.keep}; e += {group}u) {{ {store} }}
}}"""


def _narrow_block(w: Words, _size: int, group: int, key: str, load: str, store: str) -> str:
    """A workgroup finds the first ``keep`` of a chunk, ``per`` elements an invocation, without sorting the chunk.

    The ``keep``-th of the invocations' own firsts bounds the result: at least ``keep`` elements do not exceed it, and
    all that do not belong to ``keep`` invocations, so that ``keep · per`` places hold them.
    """

    def each(action: str) -> str:
        return f"""for (var t = 0u; t < {w.per}; t++) {{
  let at = first + t * {group}u + l;
  var key = {_NO_KEY[key]}; var place = 0xffffffffu;
  if (at < {w.n}) {{ {load} }}
  {action}
}}
"""

    return (
        f"var least = {_NO_KEY[key]}; var holder = 0xffffffffu;\n"
        + each("if (less(key, place, least, holder)) { least = key; holder = place; }")
        + "K[l] = least; J[l] = holder;\nworkgroupBarrier();\n"
        + _network(f"{group}u", group)
        + f"let bound = K[{w.keep} - 1u]; let last = J[{w.keep} - 1u];\n"
        + "if (l == 0u) { atomicStore(&found, 0u); }\nworkgroupBarrier();\n"
        + each(
            "if (place != 0xffffffffu && !less(bound, last, key, place)) "
            "{ let s = atomicAdd(&found, 1u); K[s] = key; J[s] = place; }"
        )
        + f"""workgroupBarrier();
if (l == 0u) {{ total = atomicLoad(&found); }}
let count = workgroupUniformLoad(&total);
var size = {w.network};
while (size < count) {{ size = size << 1u; }}
for (var e = count + l; e < size; e += {group}u) {{ K[e] = {_NO_KEY[key]}; J[e] = 0xffffffffu; }}
workgroupBarrier();
{_network("size", group)}
for (var e = l; e < {w.keep}; e += {group}u) {{ {store} }}
}}"""
    )


def sort_into(
    graph: Graph, x: Tensor, values: Tensor | None, indices: Tensor, dim: int, descending: bool, keep: int
) -> None:
    """Writes the first ``keep`` elements of every sorted row of ``x``: values and int64 positions. Stable."""
    _Sorting(lined(x), lined(values) if values is not None else None, lined(indices), dim, descending, keep).run(graph)


@lower("sort.stable", out="values_stable", results=2)
def _sort_stable(
    graph: Graph, x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sort(graph, x, dim, descending)


@lower("sort", out="values", results=2)
def _sort(graph: Graph, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    d = normal_dim(dim, x.ndim)
    values, indices = graph.new(x.sizes, x.dtype), graph.new(x.sizes, I64)
    sort_into(graph, x, values, indices, d, descending, x.sizes[d] if x.ndim else 1)
    return values, indices


@lower("topk", out="values", results=2)
def _topk(
    graph: Graph, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
) -> tuple[Tensor, Tensor]:
    d = normal_dim(dim, x.ndim)
    if not 0 <= k <= (x.sizes[d] if x.ndim else 1):
        raise RuntimeError("selected index k out of range")
    shape = list(x.sizes)
    if shape:
        shape[d] = k
    values, indices = graph.new(shape, x.dtype), graph.new(shape, I64)
    sort_into(graph, x, values, indices, d, largest, k)
    return values, indices
