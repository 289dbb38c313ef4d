"""Recipes derived for calls that differ from an earlier one in sizes only: right values, and no Python for most of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from torch_webgpu import _C
from torch_webgpu.kernels.pointwise import emit
from torch_webgpu.recipe import Graph, Tensor
from torch_webgpu.registry import lower
from torch_webgpu.wgsl import I64

HEAD = 8
attention = F.scaled_dot_product_attention
ONE = torch.randn(1, 2, 1, HEAD)
WEIGHT, BIAS, SCALE = torch.randn(16, HEAD), torch.randn(16), torch.randn(HEAD)
QUERY, TABLE = torch.randn(1, 4, 1, HEAD), torch.randn(5, HEAD)
KERNEL = torch.randn(3, 2, 3)


@pytest.fixture(autouse=True)
def verified() -> Iterator[None]:
    """Every derived recipe is compared with the one that the lowering makes."""
    _C.clear_recipes()
    _C.verify_recipes(True)
    yield
    _C.verify_recipes(False)


# ---------------------------------------------------------------------------------------------------- ops


def rows(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, n, HEAD),)


def heads(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 2, n, HEAD),)


def keys_values(n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(1, 2, n, HEAD), torch.randn(1, 2, n, HEAD)


def indices(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.arange(n) % 5,)


def masked(n: int) -> tuple[torch.Tensor, ...]:
    x = torch.randn(n, n)
    return x, x > 0


Case = tuple[str, Callable[[int], tuple[torch.Tensor, ...]], Callable[..., Any]]
CASES: list[Case] = [
    ("add", rows, lambda x, s=SCALE: x + s.to(x.device)),
    ("add a number", rows, lambda x: x + 1.5),
    ("in place", rows, lambda x: x.mul_(2)),
    ("out", rows, lambda x: torch.mul(x, 2, out=torch.empty_like(x))),
    ("half", lambda n: (torch.randn(n, 3).half(),), lambda x: x + x),
    ("half, odd rows", lambda n: (torch.randn(n, n).half(),), lambda x: x.t() + x),
    ("bool", rows, lambda x: (x > 0, (x > 0).any(), (x > 0).all(-1))),
    ("transposed", rows, lambda x: (x.transpose(1, 2) + 1, x.transpose(1, 2).contiguous())),
    ("silu", rows, F.silu),
    ("cat", heads, lambda x: torch.cat([x, ONE.to(x.device)], 2)),
    ("cat of halves", heads, lambda x: torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1)),
    ("stack", rows, lambda x: torch.stack([x, x + 1], 1)),
    ("slices", rows, lambda x: (x[:, -1:] + 1, x[:, 1:].contiguous(), x[:, ::2] * 2)),
    ("repeat", rows, lambda x: x.repeat(2, 1, 3)),
    ("expand", heads, lambda x: x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, 4, -1, HEAD)),
    ("index", rows, lambda x: x[:, torch.tensor([0, -1, 0], device=x.device)]),
    ("embedding", indices, lambda i: F.embedding(i, TABLE.to(i.device))),
    ("gather", masked, lambda x, m: torch.gather(x, 1, m.long() * (x.shape[1] > 1))),
    ("scatter", masked, lambda x, m: x.scatter(1, m.long() * (x.shape[1] > 1), 0.5)),
    ("index_copy", rows, lambda x: x.index_copy_(1, torch.tensor([0], device=x.device), x[:, :1] * 2)),
    ("masks", masked, lambda x, m: (x.masked_fill(m, -1.0), torch.where(m, x, 0.0), x.tril())),
    ("matmul", heads, lambda x: x @ x.transpose(2, 3)),
    ("linear", rows, lambda x: F.linear(x, WEIGHT.to(x.device), BIAS.to(x.device))),
    ("addmm", rows, lambda x: torch.addmm(BIAS.to(x.device), x[0], WEIGHT.to(x.device).t())),
    ("attention of one query", keys_values, lambda k, v: attention(QUERY.to(k.device), k, v, enable_gqa=True)),
    ("causal attention", keys_values, lambda k, v: attention(k, k, v, is_causal=True)),
    ("layer_norm", rows, lambda x: F.layer_norm(x, (HEAD,), SCALE.to(x.device))),
    ("rms_norm", rows, lambda x: F.rms_norm(x, (HEAD,), SCALE.to(x.device))),
    ("softmax", rows, lambda x: (x.softmax(-1), x.softmax(1), x.log_softmax(1))),
    ("reductions", rows, lambda x: (x.sum(), x.mean(-1), x.mean(1), x.amax(1), x.argmax(1), x.cumsum(1), x.var(1))),
    ("sort", rows, lambda x: (*x.sort(1), *x.topk(1, 1))),
    ("rearranged", rows, lambda x: (x.flip(1), x.roll(1, 1), F.pad(x, (0, 0, 1, 2)))),
    ("conv1d", lambda n: (torch.randn(1, 2, n + 3),), lambda x: F.conv1d(x, KERNEL.to(x.device))),
    ("arange", rows, lambda x: torch.arange(x.shape[1], device=x.device)),
    ("full", rows, lambda x: (x.new_zeros(x.shape[1]), x.new_full((x.shape[1],), 2.5))),
    ("pooled", lambda n: (torch.randn(1, 2, n + 2, n + 2),), lambda x: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1))),
]  # fmt: skip


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize(("inputs", "op"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_growing(inputs: Callable[[int], tuple[torch.Tensor, ...]], op: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    for step, n in enumerate((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 33, 31, 64, 65, 1)):
        if step == 8:
            before = _C.stats()
        host = inputs(n)
        got = flat(op(*[x.to("webgpu") for x in host]))
        for g, want in zip(got, flat(op(*[x.clone() for x in host])), strict=True):
            rtol = 2e-3 if want.dtype is torch.float16 else 1e-5
            torch.testing.assert_close(g.cpu(), want, rtol=rtol, atol=1e-5, equal_nan=True)
    now = _C.stats()
    derived, misses = (now[k] - before[k] for k in ("derived", "misses"))
    assert derived > misses, (derived, misses)


def test_random_numbers_of_growing_tensors() -> None:
    for n in range(3, 20):
        x = torch.rand(n, 3, device="webgpu")
        assert 0 <= x.min().item() <= x.max().item() < 1
        y = F.dropout(torch.ones(n, 5, device="webgpu"), 0.5).cpu()
        assert set(y.unique().tolist()) <= {0.0, 2.0}
    torch.webgpu.manual_seed(1)  # type: ignore[attr-defined]
    once = [torch.rand(n, device="webgpu").cpu() for n in range(30, 40)]
    torch.webgpu.manual_seed(1)  # type: ignore[attr-defined]
    assert all(torch.equal(a, torch.rand(len(a), device="webgpu").cpu()) for a in once)


def test_errors_of_other_sizes_are_raised() -> None:
    for n in range(2, 9):
        x = torch.ones(n, 3, device="webgpu")
        assert (x + torch.ones(n, 1, device="webgpu")).shape == (n, 3)
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(9, 3, device="webgpu") + torch.ones(7, 1, device="webgpu")
    for n in range(2, 9):
        table = torch.ones(n, 3, device="webgpu")
        assert table[torch.tensor([n - 1], device="webgpu")].sum().item() == 3
        with pytest.raises(IndexError):
            table[torch.tensor([n], device="webgpu")].cpu()


# ---------------------------------------------------------------------------------------------------- numbers

_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define("test_numbers(Tensor x, str program) -> Tensor")
PROGRAMS: dict[str, Callable[[Any, Any], list[Any]]] = {}


@lower("webgpu::test_numbers")
def _numbers(graph: Graph, x: Tensor, program: str) -> Tensor:
    values = PROGRAMS[program](*x.sizes)
    out = graph.new((len(values),), I64)
    for i, value in enumerate(values):
        emit(graph, "{0}", [value], ["l"], "l", out.narrow(0, i, 1), "fill")
    return out


def check(name: str, program: Callable[[Any, Any], list[Any]], sizes: list[tuple[int, int]]) -> None:
    """The program on the sizes of tensors, some of them symbols, against the program on integers."""
    PROGRAMS[name] = program
    for a, b in sizes:
        got = torch.ops.webgpu.test_numbers(torch.empty(a, b, device="webgpu"), name)
        assert got.tolist() == program(a, b), (name, a, b)


SIZES = [(a, b) for a in (3, 4, 5, 6, 9, 16) for b in (2, 7, 8)] + [(1, 1), (40, 3), (5, 64)]
TABLE_OF = {k: k * k for k in range(100)}
USES: dict[str, Callable[[Any, Any], list[Any]]] = {
    "arithmetic": lambda a, b: [a + b, a - b, a * b, 3 * a, -a, +a, 7 - b, a * a * b],
    "division": lambda a, b: [a // b, a % b, -a // b, -a % b, a // -b, a % -b, 100 // a, 100 % b, *divmod(a, b)],
    "bits": lambda a, b: [a & 5, a << 2, a >> 1, 1 << b % 8, a | b, a ^ b],
    "powers": lambda a, b: [a**2, 2 ** (b % 5), pow(a, 2, 5), abs(a - b)],
    "floats": lambda a, b: [int(a / b), round(a * 1.5), int(float(b)), math.ceil(a / 4), int(math.sqrt(a)), int(2.5 * a)],
    "decisions": lambda a, b: [a if a > b else b, max(a, b), min(a, b), int(a == b), int(a != 4), int(a >= 2.5), int(not a)],
    "lookups": lambda a, b: [TABLE_OF[a], TABLE_OF.get(a + b, 0), hash(a), {a: 1}.get(4, 0), int(a in (3, 5)), [7] [a * 0]],
    "conversions": lambda a, b: [len(range(a)), len([0] * b), int(str(a)), int(f"{a + b}"), sum([a, b, 1]), a.bit_length()],
    "types": lambda a, b: [int(isinstance(a, int)), int(isinstance(a, bool)), int(isinstance(a, float)), math.gcd(a, b)],
    "sorting": lambda a, b: [*sorted([a, b, 6]), *[i for i, _ in sorted(enumerate([b, a]), key=lambda x: x[1])]],
    "loops": lambda a, b: [sum(i for i in range(b)), next(n for n in (1, 4, 16, 64, 256) if n >= a)],
    "large": lambda a, b: [(a << 40) // b, a * 2**40, (a + 2**60) % 1000, a * 10**30 // 10**30],
    "errors": lambda a, b: [a // (b - 2) if b != 2 else -1],
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_sizes_compute_like_integers(name: str) -> None:
    check(name, USES[name], SIZES)


_LEAVES = st.one_of(st.sampled_from(["a", "b"]), st.integers(-3, 9).map(lambda n: f"({n})"))


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*"]), pair).map(lambda t: f"({t[1][0]} {t[0]} {t[1][1]})"),
        st.tuples(st.sampled_from(["//", "%"]), pair).map(lambda t: f"({t[1][0]} {t[0]} (abs({t[1][1]}) + 1))"),
        st.tuples(st.sampled_from(["max", "min"]), pair).map(lambda t: f"{t[0]}({t[1][0]}, {t[1][1]})"),
        st.tuples(st.sampled_from(["<", "<=", "==", "!=", ">"]), pair, pair).map(
            lambda t: f"({t[1][0]} if {t[1][1]} {t[0]} {t[2][0]} else {t[2][1]})"
        ),
        inner.map(lambda e: f"len(range({e}))"),
        inner.map(lambda e: f"int(({e}) / 2)"),
    )


@given(st.recursive(_LEAVES, _larger, max_leaves=8), st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=3))
def test_any_expression_of_sizes(expression: str, sizes: list[tuple[int, int]]) -> None:
    check(expression, eval(f"lambda a, b: [{expression}]"), sizes)
