"""Kernels written by hand, for what the compiler's are set against: chains of launches over named tensors.

Sizes are constants of the shaders, as in hand-written code; every chain computes in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from ..kernels.trials import Trial
from ..recipe import MAX_GROUPS, Graph, Tensor, Words
from ..wgsl import F32

EPS = 1e-6
WIDE = 256  # invocations of a wide workgroup: what every adapter grants
_HEAD = (
    "@compute @workgroup_size({size})\nfn main(@builtin(workgroup_id) group: vec3<u32>, "
    "@builtin(local_invocation_index) l: u32) {{\n  let g = group.y * {row}u + group.x;\n  let i = g * {size}u + l;\n"
)


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
        reads: names of the tensors that it reads, ``ld_<name>(index)``.
        writes: the one that it writes, ``st_<name>(index, value)``.
        body: statements of ``main``; ``g`` is the workgroup, ``l`` the invocation in it, ``i`` the invocation of all.
        groups: workgroups.
        shared: declarations before ``main``.
    """

    name: str
    reads: Sequence[str]
    writes: str
    body: str
    groups: int
    workgroup: int = 64
    shared: str = ""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Workgroups of the dispatch: in two dimensions where they are too many for one."""
        return min(self.groups, MAX_GROUPS), -(-self.groups // MAX_GROUPS), 1

    def source(self) -> str:
        """WGSL after the bindings."""
        row = self.grid[0]
        return f"{self.shared}\n{_HEAD.format(size=self.workgroup, row=row)}{self.body}\n}}"


class Chain:
    """Kernels run one after the other; called with the inputs by name, it returns the output, the same tensor each time."""

    def __init__(self, kernels: Sequence[Kernel], temporaries: Mapping[str, int], shape: Sequence[int]) -> None:
        """
        Args:
            temporaries: elements of each tensor between the kernels.
            shape: of the output, which the last kernel writes.
        """
        self.kernels, self.temporaries, self.shape = list(kernels), dict(temporaries), list(shape)
        made = {*self.temporaries, self.kernels[-1].writes}
        self.inputs = list(dict.fromkeys(name for k in self.kernels for name in k.reads if name not in made))

    @cached_property
    def _launched(self) -> tuple[Trial, torch.Tensor]:
        return Trial(self._record), torch.empty(self.shape, device="webgpu")

    def _record(self, graph: Graph, inputs: list[Tensor], out: Tensor, number: object) -> None:
        known = dict(zip(self.inputs, inputs, strict=True))
        known |= {name: graph.new([count], F32) for name, count in self.temporaries.items()}
        known[self.kernels[-1].writes] = out
        for kernel in self.kernels:
            args = [(name, known[name], "r") for name in kernel.reads if name != kernel.writes]
            args.append((kernel.writes, known[kernel.writes], "w"))
            source = kernel.source()
            graph.launch(kernel.name, args, _no_words, partial(_constant, source), kernel.grid, source)

    def __call__(self, **tensors: torch.Tensor) -> torch.Tensor:
        """Records the launches; raises KeyError for a tensor that is missing."""
        trial, out = self._launched
        return trial([tensors[name] for name in self.inputs], out)


def _constant(source: str, _: Any) -> str:
    return source


def _no_words(words: Words) -> None:
    pass


def elementwise(name: str, expression: str, reads: Sequence[str], writes: str, count: int) -> Kernel:
    """``writes[i] = expression`` for ``count`` elements."""
    return Kernel(name, reads, writes, f"  if (i < {count}u) {{ st_{writes}(i, {expression}); }}", -(-count // 64))


def _reduced(term: str, count: int, workgroup: int) -> str:
    """The workgroup's sum of ``term`` (in ``k``) over all of ``count`` elements, left in ``part[0]``."""
    return (
        f"  var sum = 0.0;\n  for (var k = l; k < {count}u; k += {workgroup}u) {{ sum += {term}; }}\n"
        f"  part[l] = sum;\n  workgroupBarrier();\n"
        f"  for (var s = {workgroup // 2}u; s > 0u; s = s / 2u) {{\n"
        "    if (l < s) { part[l] += part[l + s]; }\n    workgroupBarrier();\n  }\n"
    )


def _part(workgroup: int) -> str:
    return f"var<workgroup> part: array<f32, {workgroup}>;"


def rms_norm_steps(width: int) -> Chain:
    """RMSNorm in six launches: square, mean over all elements, + eps, 1/√, · x, · gain."""
    size = WIDE
    mean = _reduced("ld_a(k)", width, size) + f"  if (l == 0u) {{ st_m(0u, part[0] / {width}.0); }}"
    kernels = [
        elementwise("square", "ld_x(i) * ld_x(i)", ["x"], "a", width),
        Kernel("mean", ["a"], "m", mean, 1, size, _part(size)),
        elementwise("add eps", f"ld_m(i) + {EPS}", ["m"], "s", 1),
        elementwise("rsqrt", "inverseSqrt(ld_s(i))", ["s"], "r", 1),
        elementwise("scale", "ld_x(i) * ld_r(0u)", ["x", "r"], "y", width),
        elementwise("gain", "ld_y(i) * ld_w(i)", ["y", "w"], "o", width),
    ]
    return Chain(kernels, {"a": width, "m": 1, "s": 1, "r": 1, "y": width}, [1, width])


def _normed(width: int, writes: str, x: str = "x") -> Kernel:
    size = WIDE
    body = _reduced(f"ld_{x}(k) * ld_{x}(k)", width, size) + (
        f"  let r = inverseSqrt(part[0] / {width}.0 + {EPS});\n"
        f"  for (var k = l; k < {width}u; k += {size}u) {{ st_{writes}(k, ld_{x}(k) * r * ld_w(k)); }}"
    )
    return Kernel("rms_norm", [x, "w"], writes, body, 1, size, _part(size))


def rms_norm(width: int) -> Chain:
    """RMSNorm in one launch of one workgroup."""
    return Chain([_normed(width, "o")], {}, [1, width])


def _product(name: str, weight: str, x: str, writes: str, n: int, k: int, bias: str = "", residual: str = "") -> Kernel:
    """``writes[n] = weight[n, :] · x``, a workgroup a row."""
    sum_ = _reduced(f"ld_{weight}(g * {k}u + k) * ld_{x}(k)", k, 64)
    more = "".join(f" + ld_{t}(g)" for t in (bias, residual) if t)
    body = f"{sum_}  if (l == 0u && g < {n}u) {{ st_{writes}(g, part[0]{more}); }}"
    return Kernel(name, [weight, x, *filter(None, (bias, residual))], writes, body, n, 64, _part(64))


def _gate_up(x: str, hidden: int, inner: int) -> Kernel:
    """``h = silu(gate x) · (up x)`` in one launch: both rows' sums by one workgroup."""
    body = (
        f"  var sums = vec2<f32>();\n  for (var k = l; k < {hidden}u; k += 64u) {{\n    let v = ld_{x}(k);\n"
        f"    sums += v * vec2<f32>(ld_gate(g * {hidden}u + k), ld_up(g * {hidden}u + k));\n  }}\n"
        "  pair[l] = sums;\n  workgroupBarrier();\n  for (var s = 32u; s > 0u; s = s / 2u) {\n"
        "    if (l < s) { pair[l] += pair[l + s]; }\n    workgroupBarrier();\n  }\n"
        f"  if (l == 0u && g < {inner}u) {{ let v = pair[0]; st_h(g, v.x / (1.0 + exp(-v.x)) * v.y); }}"
    )
    return Kernel(
        "gate, up, silu, mul", ["gate", "up", x], "h", body, inner, 64, "var<workgroup> pair: array<vec2<f32>, 64>;"
    )


def mlp_7(
    hidden: int, inner: int, x: str = "x", first: Sequence[Kernel] = (), more: Mapping[str, int] | None = None
) -> Chain:
    """A gated MLP with residual, a launch an op: gate, up, sigmoid, ·, ·, down, +."""
    kernels = [
        *first,
        _product("gate", "gate", x, "p", inner, hidden),
        _product("up", "up", x, "q", inner, hidden),
        elementwise("sigmoid", "1.0 / (1.0 + exp(-ld_p(i)))", ["p"], "s", inner),
        elementwise("silu", "ld_p(i) * ld_s(i)", ["p", "s"], "a", inner),
        elementwise("mul", "ld_a(i) * ld_q(i)", ["a", "q"], "h", inner),
        _product("down", "down", "h", "d", hidden, inner),
        elementwise("residual", "ld_d(i) + ld_x(i)", ["d", "x"], "o", hidden),
    ]
    sizes = {**dict.fromkeys("pqsah", inner), "d": hidden, **(more or {})}
    return Chain(kernels, sizes, [1, hidden])


def mlp_3(hidden: int, inner: int) -> Chain:
    """Gate, up, SiLU and product in one launch; down; residual."""
    kernels = [
        _gate_up("x", hidden, inner),
        _product("down", "down", "h", "d", hidden, inner),
        elementwise("residual", "ld_d(i) + ld_x(i)", ["d", "x"], "o", hidden),
    ]
    return Chain(kernels, {"h": inner, "d": hidden}, [1, hidden])


def mlp_2(
    hidden: int, inner: int, x: str = "x", first: Sequence[Kernel] = (), more: Mapping[str, int] | None = None
) -> Chain:
    """Gate, up, SiLU and product in one launch; down and residual in another."""
    kernels = [*first, _gate_up(x, hidden, inner), _product("down", "down", "h", "o", hidden, inner, residual="x")]
    return Chain(kernels, {"h": inner, **(more or {})}, [1, hidden])


def block_steps(hidden: int, inner: int) -> Chain:
    """RMSNorm and MLP, a launch an op: 13."""
    norm = rms_norm_steps(hidden)
    renamed = [*norm.kernels[:-1], elementwise("gain", "ld_y(i) * ld_w(i)", ["y", "w"], "n", hidden)]
    prefixed = [_prefixed(k) for k in renamed]
    sizes = {f"n{name}": size for name, size in norm.temporaries.items()}
    return mlp_7(hidden, inner, "n", prefixed, {**sizes, "n": hidden})


def _prefixed(kernel: Kernel) -> Kernel:
    """The kernel with its temporaries' names apart from those of the MLP."""
    body, fixed = kernel.body, ("x", "w", "n")
    rename = {name: name if name in fixed else f"n{name}" for name in (*kernel.reads, kernel.writes)}
    for old, new in rename.items():
        body = body.replace(f"ld_{old}(", f"ld_{new}(").replace(f"st_{old}(", f"st_{new}(")
    reads = [rename[name] for name in kernel.reads]
    return Kernel(kernel.name, reads, rename[kernel.writes], body, kernel.groups, kernel.workgroup, kernel.shared)


def block_3(hidden: int, inner: int) -> Chain:
    """RMSNorm; gate, up, SiLU and product; down and residual."""
    return mlp_2(hidden, inner, "n", [_normed(hidden, "n")], {"n": hidden})


def block_mega(hidden: int, inner: int) -> Chain:
    """RMSNorm and MLP in one launch of one workgroup, which loops over all rows of all weights."""
    size = WIDE
    dot = f"for (var k = 0u; k < {hidden}u; k++) {{ let v = ld_x(k) * r * ld_w(k); a += v * ld_gate(j * {hidden}u + k); "
    body = _reduced("ld_x(k) * ld_x(k)", hidden, size) + (
        f"  let r = inverseSqrt(part[0] / {hidden}.0 + {EPS});\n"
        f"  for (var j = l; j < {inner}u; j += {size}u) {{\n    var a = 0.0;\n    var b = 0.0;\n"
        f"    {dot} b += v * ld_up(j * {hidden}u + k); }}\n"
        f"    h[j] = a / (1.0 + exp(-a)) * b;\n  }}\n  workgroupBarrier();\n"
        f"  for (var j = l; j < {hidden}u; j += {size}u) {{\n    var d = ld_x(j);\n"
        f"    for (var k = 0u; k < {inner}u; k++) {{ d += h[k] * ld_down(j * {inner}u + k); }}\n    st_o(j, d);\n  }}"
    )
    shared = f"{_part(size)}\nvar<workgroup> h: array<f32, {inner}>;"
    kernel = Kernel("rms_norm and mlp", ["x", "w", "gate", "up", "down"], "o", body, 1, size, shared)
    return Chain([kernel], {}, [1, hidden])


def block_mega_bytes(inner: int) -> int:
    """Workgroup storage that ``block_mega`` needs."""
    return 4 * (inner + WIDE)


def silu_2(hidden: int, inner: int) -> Chain:
    """``silu(gate x)`` in two launches over many workgroups."""
    kernels = [
        _product("gate", "gate", "x", "p", inner, hidden),
        elementwise("silu", "ld_p(i) / (1.0 + exp(-ld_p(i)))", ["p"], "o", inner),
    ]
    return Chain(kernels, {"p": inner}, [1, inner])


def silu_mega(hidden: int, inner: int) -> Chain:
    """``silu(gate x)`` in one launch of one workgroup."""
    size = WIDE
    body = (
        f"  for (var j = l; j < {inner}u; j += {size}u) {{\n    var a = 0.0;\n"
        f"    for (var k = 0u; k < {hidden}u; k++) {{ a += ld_x(k) * ld_gate(j * {hidden}u + k); }}\n"
        "    st_o(j, a / (1.0 + exp(-a)));\n  }"
    )
    return Chain([Kernel("gate, silu", ["x", "gate"], "o", body, 1, size)], {}, [1, inner])


def projections(width: int, each: int, count: int) -> Chain:
    """``count`` linear layers of one input, a launch each, into one output."""
    kernels = []
    for n in range(count):
        sum_ = _reduced(f"ld_w{n}(g * {width}u + k) * ld_x(k)", width, 64)
        body = f"{sum_}  if (l == 0u && g < {each}u) {{ st_o({n * each}u + g, part[0] + ld_b{n}(g)); }}"
        kernels.append(Kernel("projection", [f"w{n}", "x", f"b{n}"], "o", body, each, 64, _part(64)))
    return Chain(kernels, {}, [1, count * each])


def merged_projection(width: int, total: int) -> Chain:
    """One linear layer over concatenated weights."""
    return Chain([_product("projection", "w", "x", "o", total, width, bias="b")], {}, [1, total])


def matmul_naive(m: int, n: int, k: int) -> Chain:
    """a [m, k] @ b [k, n], an invocation an element."""
    body = (
        f"  if (i < {m * n}u) {{\n    let row = i / {n}u;\n    let column = i % {n}u;\n    var s = 0.0;\n"
        f"    for (var k = 0u; k < {k}u; k++) {{ s += ld_a(row * {k}u + k) * ld_b(k * {n}u + column); }}\n"
        "    st_o(i, s);\n  }"
    )
    return Chain([Kernel("matmul, naive", ["a", "b"], "o", body, -(-m * n // 64))], {}, [m, n])


def matmul_tiled(m: int, n: int, k: int) -> Chain:
    """a [m, k] @ b [k, n] over tiles of 16 x 16 in workgroup memory; any sizes."""
    across = -(-n // 16)
    body = (
        f"  let y = l / 16u;\n  let x = l % 16u;\n  let row = g / {across}u * 16u + y;\n"
        f"  let column = g % {across}u * 16u + x;\n  var s = 0.0;\n"
        f"  for (var start = 0u; start < {k}u; start += 16u) {{\n    var va = 0.0;\n    var vb = 0.0;\n"
        f"    if (row < {m}u && start + x < {k}u) {{ va = ld_a(row * {k}u + start + x); }}\n"
        f"    if (start + y < {k}u && column < {n}u) {{ vb = ld_b((start + y) * {n}u + column); }}\n"
        "    ta[l] = va;\n    tb[l] = vb;\n    workgroupBarrier();\n"
        "    for (var j = 0u; j < 16u; j++) { s += ta[y * 16u + j] * tb[j * 16u + x]; }\n    workgroupBarrier();\n  }\n"
        f"  if (row < {m}u && column < {n}u) {{ st_o(row * {n}u + column, s); }}"
    )
    shared = "var<workgroup> ta: array<f32, 256>;\nvar<workgroup> tb: array<f32, 256>;"
    return Chain([Kernel("matmul, tiled", ["a", "b"], "o", body, -(-m // 16) * across, 256, shared)], {}, [m, n])


def softmax_naive(rows: int, count: int) -> Chain:
    """Softmax of each row by one invocation."""
    at = f"i * {count}u + k"
    loop = f"for (var k = 0u; k < {count}u; k++)"
    body = (
        f"  if (i < {rows}u) {{\n    var m = ld_x(i * {count}u);\n    {loop} {{ m = max(m, ld_x({at})); }}\n"
        f"    var s = 0.0;\n    {loop} {{ s += exp(ld_x({at}) - m); }}\n"
        f"    {loop} {{ st_o({at}, exp(ld_x({at}) - m) / s); }}\n  }}"
    )
    return Chain([Kernel("softmax, naive", ["x"], "o", body, -(-rows // 64))], {}, [rows, count])


def softmax_parallel(rows: int, count: int) -> Chain:
    """Softmax of each row by one workgroup."""
    size = WIDE
    at, loop = f"g * {count}u + k", f"for (var k = l; k < {count}u; k += {size}u)"
    fold = f"for (var s = {size // 2}u; s > 0u; s = s / 2u) {{ if (l < s) {{ part[l] = %s; }} workgroupBarrier(); }}\n"
    body = (
        f"  var m = ld_x(g * {count}u);\n  {loop} {{ m = max(m, ld_x({at})); }}\n  part[l] = m;\n  workgroupBarrier();\n"
        f"  {fold % 'max(part[l], part[l + s])'}  m = part[0];\n  workgroupBarrier();\n"
        f"  var sum = 0.0;\n  {loop} {{ sum += exp(ld_x({at}) - m); }}\n  part[l] = sum;\n  workgroupBarrier();\n"
        f"  {fold % 'part[l] + part[l + s]'}  sum = part[0];\n"
        f"  {loop} {{ st_o({at}, exp(ld_x({at}) - m) / sum); }}"
    )
    return Chain([Kernel("softmax, parallel", ["x"], "o", body, rows, size, _part(size))], {}, [rows, count])
