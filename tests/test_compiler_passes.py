"""Each pass of the compiler alone, on a tiny graph: what it finds, what it leaves alone, what a plan then launches."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from torch_webgpu.compiler import backend, executor, fusion, fusion_linear, lower, memory, passes, patterns, siblings
from torch_webgpu.compiler.aliasing import keep_apart, memory_of, result_memory, written
from torch_webgpu.compiler.attention_patterns import (
    ATTENTION,
    DECODE_ATTENTION,
    ROPE,
    attentions,
    rotary_embeddings,
)
from torch_webgpu.compiler.ir import Kernel, Module, Pointwise
from torch_webgpu.compiler.layer_patterns import LINEAR, RMS_NORM, linears, rms_norms
from torch_webgpu.compiler.linear import Linear, RmsNorm
from torch_webgpu.compiler.matching import simplify
from torch_webgpu.compiler.plan import assemble
from torch_webgpu.compiler.prepare import (
    NotTraceableError,
    alias_pattern,
    may_mutate,
    overlap,
    prepare,
    takes_storage_offsets,
)

DEVICE = "webgpu"
LEVELS = ("none", "pointwise", "full")
F32, F16 = torch.float32, torch.float16
aten = torch.ops.aten
Function = Callable[..., Any]
Inputs = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No guards of an earlier test."""
    torch._dynamo.reset()


def noise(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape))).to(dtype)


def at_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=level))


def run(
    function: Function, inputs: Inputs, level: str, monkeypatch: pytest.MonkeyPatch, tolerance: float = 1e-5
) -> list[Any]:
    """Compiles, compares with the CPU, and returns the launches of the plan."""
    at_level(level, monkeypatch)
    first = len(backend.compiled)
    there = [x.to(DEVICE, copy=True) for x in inputs]
    here = [x.clone() for x in inputs]
    with torch.no_grad():
        got, want = torch.compile(function, backend="webgpu")(*there), function(*here)
    for x, y in zip(_tensors([got, there]), _tensors([want, here]), strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=tolerance, atol=tolerance)
    (graph,) = backend.compiled[first:]
    (plan,) = graph.plans
    assert len(plan.dispatches) == len(plan.recipe[2])
    return plan.dispatches


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


def traced(function: Function, *inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> fx.GraphModule:
    """The ATen graph that the passes get."""
    at_level("none", monkeypatch)
    with torch.no_grad():
        torch.compile(function, backend="webgpu")(*[x.to(DEVICE, copy=True) for x in inputs])
    return backend.compiled[-1].source


def count(module: fx.GraphModule, target: Any) -> int:
    return sum(n.target is target for n in module.graph.nodes)


def lowered(function: Function, *inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Module:
    """The steps before the passes on them, of the graph after those on it."""
    at_level("full", monkeypatch)
    found: list[Module] = []

    def spy(module: fx.GraphModule, metas: Any) -> Module:
        found.append(lower.lower(module, metas))
        return lower.lower(module, metas)

    monkeypatch.setattr(executor, "lower", spy)
    with torch.no_grad():
        torch.compile(function, backend="webgpu")(*[x.to(DEVICE, copy=True) for x in inputs])
    monkeypatch.setattr(executor, "lower", lower.lower)
    return found[-1]


def kinds(module: Module) -> Counter[str]:
    return Counter(type(step).__name__ for step in module.steps)


# ---------------------------------------------------------------------------------------------------- launches


def rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def wide_rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-high, low), -1) * sin


def repeated(x: torch.Tensor, n: int) -> torch.Tensor:
    b, h, length, d = x.shape
    return x[:, :, None].expand(b, h, n, length, d).reshape(b, h * n, length, d)


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def chunked(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, g = F.linear(x, w, b).chunk(2, -1)
    return a * F.gelu(g)


ROW, GAIN, W, V, B = noise(1, 64), noise(64), noise(32, 64) / 8, noise(32, 64, seed=1) / 8, noise(32)
HEADS = tuple(noise(1, 4, 5, 16, seed=s) for s in range(3))
FEW = tuple(noise(1, 2, 5, 16, seed=s) for s in range(2))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
NORMED: Function = lambda x, g, b: F.layer_norm(x, (64,), g, b)  # noqa: E731

# name: function, inputs, launches at none, pointwise, full
GRAPHS: dict[str, tuple[Function, Inputs, tuple[int, int, int]]] = {
    "rms_norm": (rms, (noise(2, 64), GAIN), (6, 4, 1)),
    "rms_norm half": (wide_rms, (noise(2, 64, dtype=F16), GAIN.half()), (8, 4, 1)),
    "rms_norm of torch": (lambda x, g: F.rms_norm(x, (64,), g, 1e-6), (noise(2, 64), GAIN), (1, 1, 1)),
    "layer_norm": (NORMED, (noise(2, 64), GAIN, noise(64, seed=1)), (1, 1, 1)),
    "rope": (rope, (noise(1, 2, 3, 16), noise(3, 16), noise(3, 16, seed=1)), (6, 3, 1)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS, (1, 1, 1)),
    "attention, mask": (F.scaled_dot_product_attention, (*HEADS, CAUSAL), (4, 2, 1)),
    "attention, groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k, 2), repeated(v, 2)),
        (HEADS[0], *FEW),
        (3, 3, 1),
    ),
    "attention, enable_gqa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (HEADS[0], *FEW),
        (1, 1, 1),
    ),
    "linear": (F.linear, (ROW, W), (1, 1, 1)),
    "linear, bias": (F.linear, (ROW, W, B), (1, 1, 1)),
    "linear, many rows, gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (noise(40, 64), W, B), (2, 2, 1)),
    "linear, bias, silu, product": (lambda x, w, b, y: F.silu(F.linear(x, w, b)) * y, (ROW, W, B, noise(1, 32)), (3, 2, 1)),
    "linear, residual": (lambda x, w, r: r + F.linear(x, w), (ROW, W, noise(1, 32)), (2, 2, 1)),
    "SwiGLU": (swiglu, (ROW, W, V), (4, 3, 1)),
    "SwiGLU, down, residual": (
        lambda r, x, w, v, d: r + F.linear(swiglu(x, w, v), d),
        (noise(1, 64, seed=2), ROW, W, V, noise(64, 32) / 8),
        (6, 5, 2),
    ),
    "GeGLU": (lambda x, w, v: F.gelu(F.linear(x, w)) * F.linear(x, v), (ROW, W, V), (4, 3, 1)),
    "GeGLU, tanh": (lambda x, w, v: F.gelu(F.linear(x, w), approximate="tanh") * F.linear(x, v), (ROW, W, V), (4, 3, 1)),
    "GeGLU of halves": (chunked, (ROW, torch.cat((W, V)), noise(64)), (3, 2, 2)),
    "rms_norm, linear": (lambda x, g, w: F.linear(rms(x, g), w), (ROW, GAIN, W), (7, 5, 1)),
    "rms_norm of torch, linear": (lambda x, g, w: F.linear(F.rms_norm(x, (64,), g, 1e-6), w), (ROW, GAIN, W), (2, 2, 1)),
    "rms_norm, SwiGLU": (lambda x, g, w, v: swiglu(rms(x, g), w, v), (ROW, GAIN, W, V), (10, 7, 1)),
    "residual, rms_norm, linear": (
        lambda x, y, g, w: (lambda h: (h, F.linear(rms(h, g), w)))(x + y),
        (ROW, noise(1, 64, seed=3), GAIN, W),
        (8, 6, 2),
    ),
    "layer_norm, linear, gelu": (
        lambda x, g, b, w, c: F.gelu(F.linear(NORMED(x, g, b), w, c)),
        (ROW, GAIN, noise(64, seed=1), W, B),
        (3, 3, 2),
    ),
    "embedding": (F.embedding, (torch.tensor([[1, 2, 5]]), noise(8, 16)), (1, 1, 1)),
    "argmax": (lambda x: x.argmax(-1), (noise(2, 300),), (1, 1, 1)),
    "head, argmax": (lambda x, w: F.linear(x, w)[:, -1].argmax(-1), (noise(1, 1, 64), noise(100, 64)), (2, 2, 2)),
    "softmax": (lambda x: x.softmax(-1), (noise(2, 64),), (1, 1, 1)),
    "chain": (lambda x, y: torch.tanh(x * 2 + y).relu() - 1, (noise(5, 7), noise(7)), (5, 1, 1)),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", GRAPHS)
def test_launches_of_a_plan(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs, expected = GRAPHS[name]
    tolerance = 4e-3 if any(x.dtype is F16 for x in inputs) else 2e-5
    dispatches = run(function, inputs, level, monkeypatch, tolerance)
    assert len(dispatches) == expected[LEVELS.index(level)], [d.name for d in dispatches]


# ---------------------------------------------------------------------------------------------------- RMS norms

X, G = noise(2, 3, 8), noise(8)
root = torch.rsqrt
NORMS: dict[str, Function] = {
    "gain first": rms,
    "gain last": lambda x, g: x * root(x.pow(2).mean(-1, True) + 1e-5) * g,
    "product with itself": lambda x, g: g * (root((x * x).mean((-1,), keepdim=True) + 1e-5) * x),
    "square": lambda x, g: g * (x * root(x.square().mean(2, keepdim=True) + 1e-5)),
    "torch": lambda x, g: F.rms_norm(x, (8,), g, 1e-5),
}
NOT_NORMS: dict[str, Function] = {
    "another dimension": lambda x, g: g * (x * root(x.pow(2).mean(0, keepdim=True) + 1e-5)),
    "two dimensions": lambda x, g: g * (x * root(x.pow(2).mean((-1, -2), keepdim=True) + 1e-5)),
    "another power": lambda x, g: g * (x * root(x.abs().pow(3).mean(-1, keepdim=True) + 1e-5)),
    "product of two": lambda x, g: g * (x * root((x * (x + 1)).abs().mean(-1, keepdim=True) + 1e-5)),
    "scales another": lambda x, g: g * ((x + 1) * root(x.pow(2).mean(-1, keepdim=True) + 1e-5)),
    "root used twice": lambda x, g: g * (x * (r := root(x.pow(2).mean(-1, keepdim=True) + 1e-5))) + r,
    "scaled used twice": lambda x, g: g * (y := x * root(x.pow(2).mean(-1, keepdim=True) + 1e-5)) + y,
    "no epsilon": lambda x, g: g * (x * root(x.pow(2).mean(-1, keepdim=True))),
    "epsilon of each row": lambda x, g: g * (x * root(x.pow(2).mean(-1, keepdim=True) + x[..., :1].abs())),
    "epsilon of another weight": lambda x, g: g * (x * root(torch.add(x.pow(2).mean(-1, keepdim=True), 1e-5, alpha=2))),
    "sum": lambda x, g: g * (x * root(x.pow(2).sum(-1, keepdim=True) + 1e-5)),
    "matrix gain": lambda x, g: g.expand(3, 8).clone() * (x * root(x.pow(2).mean(-1, keepdim=True) + 1e-5)),
    "number as gain": lambda x, g: 2.0 * (x * root(x.pow(2).mean(-1, keepdim=True) + 1e-5)) + g,
    "no gain": lambda x, g: F.rms_norm(x, (8,), None, 1e-5) + g,
    "wide result": lambda x, g: g * ((w := x.float()) * root(w.pow(2).mean(-1, keepdim=True) + 1e-5)),
}


@pytest.mark.parametrize("name", NORMS)
def test_rms_norms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = rms_norms(traced(NORMS[name], X, G, monkeypatch=monkeypatch))
    assert count(module, RMS_NORM) == 1 and len(list(module.graph.nodes)) == 4


@pytest.mark.parametrize("name", NOT_NORMS)
def test_what_is_no_rms_norm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = F16 if name == "wide result" else F32
    inputs = X.to(dtype), G
    assert count(rms_norms(traced(NOT_NORMS[name], *inputs, monkeypatch=monkeypatch)), RMS_NORM) == 0
    torch._dynamo.reset()
    run(NOT_NORMS[name], inputs, "full", monkeypatch, 1e-4)


# ---------------------------------------------------------------------------------------------------- linear layers


def test_linears(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = noise(2, 8), noise(4, 8), noise(4)
    cases: dict[Function, int] = {
        (lambda x, w, b: F.linear(x, w)): 1,
        (lambda x, w, b: F.linear(x, w, b)): 1,
        (lambda x, w, b: x @ w.t()): 1,
        (lambda x, w, b: torch.addmm(b, x, w.transpose(0, 1))): 1,
        (lambda x, w, b: torch.addmm(b, x, w.t(), beta=2)): 0,
        (lambda x, w, b: torch.addmm(b, x, w.t(), alpha=0.5)): 0,
        (lambda x, w, b: torch.addmm(b.expand(2, 4).clone(), x, w.t())): 0,
        (lambda x, w, b: x * 2 + 1): 0,
    }
    for function, expected in cases.items():
        torch._dynamo.reset()
        assert count(linears(traced(function, x, w, b, monkeypatch=monkeypatch)), LINEAR) == expected
        torch._dynamo.reset()
        run(function, (x, w, b), "full", monkeypatch)


# ---------------------------------------------------------------------------------------------------- rotary embeddings

NOT_ROPE: dict[str, Function] = {
    "other sign": lambda x, c, s: x * c + torch.cat((x[..., 4:], -x[..., :4]), -1) * s,
    "no sign": lambda x, c, s: x * c + torch.cat((x[..., 4:], x[..., :4]), -1) * s,
    "difference": lambda x, c, s: x * c - torch.cat((-x[..., 4:], x[..., :4]), -1) * s,
    "uneven parts": lambda x, c, s: x * c + torch.cat((-x[..., 3:], x[..., :3]), -1) * s,
    "overlapping parts": lambda x, c, s: x * c + torch.cat((-x[..., 4:], x[..., 1:5]), -1) * s,
    "another dimension": lambda x, c, s: x * c + torch.cat((-x[:, :, 1:], x[:, :, :1]), 2) * s,
    "two tensors": lambda x, c, s: x * c + torch.cat((-(x + 1)[..., 4:], (x + 1)[..., :4]), -1) * s,
    "weighted sum": lambda x, c, s: torch.add(x * c, torch.cat((-x[..., 4:], x[..., :4]), -1) * s, alpha=2),
    "pairs": lambda x, c, s: x * c + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * s,
    "grows": lambda x, c, s: x * c[:, None, None] + torch.cat((-x[..., 4:], x[..., :4]), -1) * s,
}


@pytest.mark.parametrize("name", NOT_ROPE)
def test_what_is_no_rotary_embedding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = noise(1, 3, 2, 8), noise(2, 8), noise(2, 8, seed=1)
    module = rotary_embeddings(traced(NOT_ROPE[name], *inputs, monkeypatch=monkeypatch))
    assert count(module, ROPE) == 0
    torch._dynamo.reset()
    run(NOT_ROPE[name], inputs, "full", monkeypatch)


def test_rotary_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = noise(1, 3, 2, 8), noise(2, 8), noise(2, 8, seed=1)
    forms: tuple[Function, ...] = (
        rope,
        lambda x, c, s: torch.cat((-x[..., 4:], x[..., :4]), -1) * s + c * x,
        lambda x, c, s: s * torch.cat((-x[..., 4:], x[..., :4]), dim=3) + x * c[:1],
        lambda x, c, s: (lambda a, b: x * c + torch.cat((-b, a), -1) * s)(*x.chunk(2, -1)),
    )
    for form in forms:
        torch._dynamo.reset()
        found = count(rotary_embeddings(traced(form, *inputs, monkeypatch=monkeypatch)), ROPE)
        assert found == (0 if form is forms[-1] else 1)
        torch._dynamo.reset()
        run(form, inputs, "full", monkeypatch)


# ---------------------------------------------------------------------------------------------------- attention


def tiled(x: torch.Tensor, n: int) -> torch.Tensor:
    """Heads repeated as 0 1 0 1, not 0 0 1 1."""
    b, h, length, d = x.shape
    return x[:, None].expand(b, n, h, length, d).reshape(b, h * n, length, d)


sdpa = F.scaled_dot_product_attention


@pytest.mark.parametrize(
    ("repeat_k", "repeat_v", "expected"),
    ((repeated, repeated, 2), (tiled, tiled, 4), (repeated, tiled, 4), (tiled, repeated, 4)),
)
def test_keys_and_values_before_they_are_repeated(
    repeat_k: Function, repeat_v: Function, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, repeat_k(k, 2), repeat_v(v, 2))

    inputs = (HEADS[0], *FEW)
    module = attentions(traced(f, *inputs, monkeypatch=monkeypatch))
    (node,) = [n for n in module.graph.nodes if n.target is ATTENTION]
    assert [a.meta["val"].shape[1] for a in node.args[1:3]] == [expected] * 2
    torch._dynamo.reset()
    run(f, inputs, "full", monkeypatch)


@pytest.mark.parametrize(
    ("mask", "taken"),
    (
        (lambda m: m, True),
        (lambda m: torch.where(m, 0.0, -torch.inf), True),
        (lambda m: torch.where(m, -torch.inf, 0.0).flip(-1), False),
        (lambda m: torch.where(m, 0.0, -1.0), False),
        (lambda m: torch.where(m, 0.5, -torch.inf), False),
    ),
)
def test_masks_are_taken_as_bools(mask: Function, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, mask(m))

    module = attentions(traced(f, *HEADS, CAUSAL, monkeypatch=monkeypatch))
    (node,) = [n for n in module.graph.nodes if n.target is ATTENTION]
    assert (node.args[3].meta["val"].dtype is torch.bool) == taken
    torch._dynamo.reset()
    run(f, (*HEADS, CAUSAL), "full", monkeypatch)


def decode(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any, mask: Any) -> Any:
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at, v)
    return sdpa(q, keys, values, mask)


def _other_rows(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any, mask: Any) -> Any:
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at - 1, v)
    return sdpa(q, keys, values, mask)


def _keys_read_again(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any, mask: Any) -> Any:
    return decode(q, k, v, keys, values, at, mask), keys.sum()


def _old_keys(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any, mask: Any) -> Any:
    old = keys * 1
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at, v)
    return sdpa(q, old, values, mask)


def _only_values(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any, mask: Any) -> Any:
    values.index_copy_(2, at, v)
    return sdpa(q, keys, values, mask)


@pytest.mark.parametrize(
    ("function", "expected"), ((decode, 1), (_other_rows, 0), (_keys_read_again, 0), (_old_keys, 0), (_only_values, 0))
)
def test_decode_attentions(function: Function, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (
        noise(1, 4, 1, 16),
        *(noise(1, 2, 1, 16, seed=s) for s in range(2)),
        *(noise(1, 2, 8, 16, seed=s) for s in range(2)),
        torch.tensor([3]),
        torch.arange(8)[None, None, None] <= 3,
    )

    def grouped(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any, mask: Any) -> Any:
        return function(q[:, :2], k, v, keys, values, at, mask)

    module = patterns.rewrite(traced(grouped, *inputs, monkeypatch=monkeypatch), "full")
    assert count(module, DECODE_ATTENTION) == expected
    assert count(module, aten.index_copy_.default) == (0 if expected else 1 if function is _only_values else 2)
    torch._dynamo.reset()
    run(grouped, inputs, "full", monkeypatch)


# ---------------------------------------------------------------------------------------------------- writes


@pytest.mark.parametrize(
    ("function", "in_place"),
    (
        (lambda x, i, s: x.index_copy_(0, i, s).sum(), True),
        (lambda x, i, s: x.index_add_(0, i, s).sum(), True),
        (lambda x, i, s: x.index_put_((i,), s).sum(), True),
        (lambda x, i, s: x.scatter_(0, i[:, None].expand(1, 3), s).sum(), True),
        (lambda x, i, s: (x[1:] * 2, x.index_copy_(0, i, s).sum())[1], True),
        (lambda x, i, s: (lambda old: (x.index_copy_(0, i, s), old + 0.5)[1])(x.clone()), True),
        (lambda x, i, s: x.index_copy_(0, i, x[:1] * 1), True),
        (lambda x, i, s: x.copy_(x.index_copy(0, i, x[:1])), False),
        (lambda x, i, s: x.copy_(x.index_copy(0, i, s) + 1), False),
        (lambda x, i, s: (lambda y: (x.copy_(y), y.sum())[1])((x + 1).index_copy(0, i, s)), False),
        (lambda x, i, s: x.index_copy(0, i, s), False),
    ),
)
def test_updates_in_place(function: Function, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = noise(4, 3), torch.tensor([2]), noise(1, 3, seed=5)
    module = patterns.update_in_place(traced(function, *inputs, monkeypatch=monkeypatch))
    made = sum(count(module, op) for op in patterns._IN_PLACE.values())
    assert made == int(in_place) and count(module, aten.copy_.default) + made <= 1
    torch._dynamo.reset()
    run(function, inputs, "full", monkeypatch)


def test_memory_of_views_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> Any:
        a, b = (x.t()[1:] + 0.5).split(1)
        return a.view(-1), b, x.index_copy_(0, i, s).sum(), x[0] * 1

    module = traced(f, noise(4, 3), torch.tensor([2]), noise(1, 3), monkeypatch=monkeypatch)
    x = next(iter(module.graph.nodes))
    first, second, total, _ = result_memory(module.graph)
    assert first is second and first is not total and first is not None and first.target is aten.add.Tensor
    module = patterns.update_in_place(module)
    (update,) = [n for n in module.graph.nodes if n.target is aten.index_copy_.default]
    assert memory_of(update) is x and written(module.graph) == {x}


def test_results_made_one_are_kept_apart() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    a, b = (graph.call_function(aten.add.Tensor, (x, 1)) for _ in range(2))
    v = graph.call_function(aten.t.default, (a,))
    graph.output((a, b, v, x))
    module = fx.GraphModule(nn.Module(), graph)
    before = result_memory(graph)
    assert keep_apart(module, before, ()) is module and count(module, aten.clone.default) == 0
    b.replace_all_uses_with(a)
    keep_apart(module, before, {1})
    assert count(module, aten.clone.default) == 0, "of free results only the metadata matters"
    keep_apart(module, before, ())
    results = list(graph.output_node().args[0])  # type: ignore[arg-type]
    assert count(module, aten.clone.default) == 1 and results[0] is a and results[1] is not a and results[3] is x


@pytest.mark.parametrize(
    ("function", "left"),
    (
        (lambda x: (x + 1) * (x + 1), 1),
        (lambda x: (x + 1) * (x + 1.0), 2),
        (lambda x: torch.add(x, x, alpha=2) * torch.add(x, x), 2),
        (lambda x: (x + 1, x + 1), 1),
        (lambda x: (x + 1).sum(0) + (x + 1).sum(1), 2),
    ),
)
def test_common_subexpressions(function: Function, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = patterns.eliminate_common(traced(function, noise(3, 3), monkeypatch=monkeypatch))
    assert count(module, aten.add.Tensor) == left
    torch._dynamo.reset()
    run(function, (noise(3, 3),), "full", monkeypatch)


def test_random_numbers_are_no_common_subexpression(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.rand_like(x), torch.rand_like(x)

    at_level("full", monkeypatch)
    a, b = torch.compile(f, backend="webgpu")(torch.ones(50, device=DEVICE))
    assert not torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize(
    ("function", "left"),
    (
        (lambda x, n: x * 1, 0),
        (lambda x, n: 1.0 * x, 0),
        (lambda x, n: x + 0, 1),  # -0.0 + 0 is 0.0
        (lambda x, n: n + 0, 0),
        (lambda x, n: n * 1.0, 1),  # becomes a float
        (lambda x, n: n.view(1, 3) * torch.ones(2, 3, dtype=torch.int64, device=n.device), 1),  # grows
        (lambda x, n: torch.add(n, 0, alpha=3), 1),
        (lambda x, n: (lambda y: (x.index_copy_(0, n[:1], x[1:2] * 3), y + 1)[1])(x * 1), 1),  # x changes before y is read
    ),
)
def test_simplifications(function: Function, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.tensor([-0.0, 1.0, 2.0]), torch.tensor([2, 1, 0])
    module = simplify(patterns.update_in_place(traced(function, *inputs, monkeypatch=monkeypatch)))
    neutral = [n for n in module.graph.nodes if n.target in (aten.add.Tensor, aten.mul.Tensor) and _is_neutral(n)]
    assert len(neutral) == left
    torch._dynamo.reset()
    run(function, inputs, "full", monkeypatch, 0.0)


def _is_neutral(node: fx.Node) -> bool:
    other = node.args[1]
    return isinstance(other, fx.Node) or bool(other == (0 if node.target is aten.add.Tensor else 1))


# ---------------------------------------------------------------------------------------------------- before tracing


def dynamo_graph(function: Function, *inputs: torch.Tensor) -> fx.GraphModule:
    """The graph that a backend gets."""
    found: list[fx.GraphModule] = []

    def note(module: fx.GraphModule, _: Any) -> Any:
        found.append(module)
        return module

    torch.compile(function, backend=note)(*inputs)
    return found[0]


def test_inactive_dropout_goes_and_active_stays() -> None:
    for training in (False, True):
        torch._dynamo.reset()
        module = prepare(dynamo_graph(lambda x, t=training: F.dropout(x, 0.5, t) + 1, torch.ones(3)))
        assert count(module, F.dropout) == int(training)


@pytest.mark.parametrize(
    ("function", "blocks"),
    (
        (lambda x: x.unfold(1, 1, 2).add_(1), True),
        (lambda x: x.unfold(1, 1, 2)[0].mul_(2), True),
        (lambda x: x.unfold(1, 2, 3).__setitem__(..., 7.0), True),
        (lambda x: F.relu(x.unfold(1, 1, 2), True), True),
        (lambda x: x.unfold(1, 2, 1) * 2, False),
        (lambda x: (x.unfold(1, 1, 2) * 1).add_(1), False),
        (lambda x: (x.unfold(1, 1, 2), x.clone().mul_(2)), False),
    ),
)
def test_unfold_becomes_blocks_where_it_is_written(function: Function, blocks: bool) -> None:
    module = prepare(dynamo_graph(function, torch.arange(12.0).view(2, 6)))
    unfolds = sum(n.target == "unfold" for n in module.graph.nodes)
    assert (sum(n.target == "unflatten" for n in module.graph.nodes) > 0) == blocks and (
        unfolds == 0 or not blocks or unfolds == 1
    )
    x, y = torch.arange(12.0).view(2, 6), torch.arange(12.0).view(2, 6)
    for got, want in zip(_tensors([module(x), x]), _tensors([function(y), y]), strict=False):
        assert torch.equal(got, want)


def test_a_last_window_without_its_gap_is_not_traced() -> None:
    with pytest.raises(NotTraceableError):
        prepare(dynamo_graph(lambda x: x.unfold(0, 2, 3).add_(1), torch.ones(5)))


@pytest.mark.parametrize(
    ("function", "expected"),
    (
        (lambda x: x + 1, False),
        (lambda x: x.relu(), False),
        (lambda x: F.relu(x, inplace=False), False),
        (lambda x: x.__eq__(1), False),
        (lambda x: x.add_(1), True),
        (lambda x: F.relu(x, inplace=True), True),
        (lambda x: F.relu(x, True), True),
        (lambda x: torch.add(x, 1, out=x), True),
        (lambda x: x.__setitem__(0, 1.0), True),
        (lambda x: torch.relu_(x), True),
        (lambda x: F.batch_norm(x, torch.zeros(2), torch.ones(2), training=True), True),
        (lambda x: torch.ops.aten.add_.Tensor(x, 1), True),
        (lambda x: torch._foreach_add_([x], 1), True),
    ),
)
def test_may_mutate(function: Function, expected: bool) -> None:
    assert may_mutate(dynamo_graph(function, torch.ones(3, 2))) == expected


def test_where_inputs_lie() -> None:
    b = torch.arange(12.0)
    p = nn.Parameter(b)
    assert alias_pattern([b, b]) == alias_pattern([b[:4], b[:4]]) != alias_pattern([b[:4], b[2:6]])
    assert alias_pattern([b[2:4], b[4:]]) == alias_pattern([b[:4], b[2:]]) and not alias_pattern([b, torch.ones(2), 3])
    assert not alias_pattern([p, p.detach()])
    assert overlap([b[:4], b[3:6]]) and overlap([b[::2], b[1::2]]) and overlap([p, b])
    assert not overlap([b[:4], b[4:]]) and not overlap([b, torch.ones(3), 2]) and not overlap([b[:0], b])
    assert takes_storage_offsets(dynamo_graph(lambda x: x.as_strided((2,), (1,)) + 1, b))
    torch._dynamo.reset()
    assert not takes_storage_offsets(dynamo_graph(lambda x: x[1:] + 1, b))


# ---------------------------------------------------------------------------------------------------- steps


def test_an_unsupported_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "lower", lambda *args: lower.lower(*args))
    graph = fx.Graph()
    x = graph.placeholder("x")
    bad = graph.call_function(torch.nn.functional.relu, (x,))
    graph.output((bad,))
    with pytest.raises(lower.UnsupportedNodeError, match=r"relu.*: not an ATen op"):
        _lower_alone(fx.GraphModule(nn.Module(), graph), torch.ones(2))


def _lower_alone(module: fx.GraphModule, *inputs: torch.Tensor) -> Module:
    found: list[Any] = []

    def spy(metas: Any) -> Any:
        found.append(metas)
        raise lower.UnsupportedNodeError(next(iter(module.graph.nodes)), "only looking")

    handle = lower._C.make_plans("test", spy)
    with pytest.raises(lower.UnsupportedNodeError, match="only looking"):
        lower._C.run_plans(handle, [x.to(DEVICE) for x in inputs], 1)
    return lower.lower(module, found[0])


Pair = tuple[torch.Tensor, torch.Tensor]
A, C = noise(4, 6), noise(6)


@pytest.mark.parametrize(
    ("function", "left"),
    (
        (lambda x, y: (x + y).relu() * 2, {"Pointwise": 1}),
        (lambda x, y: (lambda z: (z, z * 2))(x + y), {"Pointwise": 2}),  # a result is stored anyway
        (lambda x, y: (x + y).sum(0), {"Pointwise": 1, "Kernel": 1}),
        (lambda x, y: (lambda z: z.relu() + z.t().reshape(4, 6))(x + y), {"Pointwise": 2}),
        (lambda x, y: (x * 2).t() + 1, {"Pointwise": 1}),
        (lambda x, y: (x * 2)[:, 1:] + (x * 2)[:, :-1], {"Pointwise": 1}),
        (lambda x, y: (x * 2)[::2].expand(3, 2, 6) - 1, {"Pointwise": 1}),
        (lambda x, y: (y * 2).expand(4, 6) + x, {"Pointwise": 1}),
        (lambda x, y: y.exp().expand(4, 6) + x, {"Pointwise": 2}),  # would be computed four times
        (lambda x, y: torch.cat([x * 2, x + 1]), {"Pointwise": 2, "Kernel": 1}),
        (lambda x, y: (x * 2).softmax(-1) + 1, {"Pointwise": 2, "Kernel": 1}),
        (lambda x, y: (lambda z: (x.add_(1), z * 3)[1])(x * 2), {"Pointwise": 2}),
        (lambda x, y: x.copy_((x * 2).t().reshape(4, 6)), {"Pointwise": 2}),  # reads what it writes, elsewhere
        (lambda x, y: (x.to(torch.int8) + 100).to(torch.int32) * 2, {"Pointwise": 1}),
    ),
)
def test_fusion_of_elementwise_steps(function: Function, left: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    module = fusion.fuse_pointwise(lowered(function, A * 9, C, monkeypatch=monkeypatch))
    assert kinds(module) == left, [s.name for s in module.steps]
    torch._dynamo.reset()
    run(function, (A * 9, C), "pointwise", monkeypatch)


def test_fused_steps_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for k in range(3 * fusion.MOST_STEPS):
            x = (x + k).relu()
        return x

    module = fusion.fuse_pointwise(lowered(f, torch.zeros(3), monkeypatch=monkeypatch))
    assert 6 <= len(module.steps) <= 12
    assert all(len(s.program.steps) <= fusion.MOST_STEPS for s in module.steps)
    torch._dynamo.reset()
    run(f, (torch.zeros(3),), "pointwise", monkeypatch)


def test_fused_steps_bind_what_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = tuple(noise(5, seed=s) for s in range(30))
    module = fusion.fuse_pointwise(lowered(lambda *xs: sum(xs), *xs, monkeypatch=monkeypatch))
    bound = [fusion.binding_count([s.out, *s.reads()]) for s in module.steps]
    assert max(bound) <= fusion.most_bindings() and len(bound) < 29


def test_inputs_of_one_buffer_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two views of one storage, as inputs of their own, have equal shapes and no offset of the plan's making."""
    at_level("full", monkeypatch)
    b = torch.arange(12.0, device=DEVICE)
    got = torch.compile(lambda x, y: x * 2 + y, backend="webgpu")(b[:4], b[8:])
    assert got.tolist() == [8.0, 11.0, 14.0, 17.0]
    w = torch.eye(4, device=DEVICE)
    got = torch.compile(lambda x, y: F.linear(x, w) * F.linear(y, w), backend="webgpu")(b[None, :4], b[None, 8:])
    assert got.tolist() == [[0.0, 9.0, 20.0, 33.0]]


# ---------------------------------------------------------------------------------------------------- around linear layers

NORM_INPUTS = ROW, GAIN, W, V


@pytest.mark.parametrize(
    ("function", "left"),
    (
        (lambda x, g, w, v: F.linear(rms(x, g), w), {"Linear": 1}),
        (lambda x, g, w, v: (lambda h: (F.linear(h, w), F.linear(h, v)))(rms(x, g)), {"Linear": 2}),
        (lambda x, g, w, v: (lambda h: (F.linear(h, w), h))(rms(x, g)), {"Linear": 1, "RmsNorm": 1}),
        (lambda x, g, w, v: (lambda h: (F.linear(h, w), h.sum()))(rms(x, g)), {"Linear": 1, "RmsNorm": 1, "Kernel": 1}),
        (lambda x, g, w, v: F.linear(rms(x.expand(64, 64), g), w), {"Linear": 1, "RmsNorm": 1}),  # many rows
        (lambda x, g, w, v: F.linear(rms(x, g).view(2, 32), w[:, :32]), {"Linear": 1, "RmsNorm": 1}),  # other rows
    ),
)
def test_norms_move_into_layers(function: Function, left: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    module = fusion_linear.fuse_norms(lowered(function, *NORM_INPUTS, monkeypatch=monkeypatch))
    found = {name: n for name, n in kinds(module).items() if name in left or name == "RmsNorm"}
    assert found == left
    torch._dynamo.reset()
    run(function, NORM_INPUTS, "full", monkeypatch)


R = noise(1, 32, seed=7)
LAYER_INPUTS = ROW, W, V, R


@pytest.mark.parametrize(
    ("function", "left"),
    (
        (lambda x, w, v, r: F.linear(x, w).relu(), {"Linear": 1}),
        (lambda x, w, v, r: r + F.linear(x, w), {"Linear": 1}),
        (lambda x, w, v, r: F.linear(x, w) * r[0, 0] - 3, {"Linear": 1}),
        (lambda x, w, v, r: F.linear(x, w).view(4, 8) + r.view(4, 8), {"Linear": 1}),
        (swiglu_of := lambda x, w, v, r: swiglu(x, w, v), {"Linear": 1}),
        (lambda x, w, v, r: F.linear(x, w) - F.linear(x * 1.5, v), {"Linear": 2, "Pointwise": 1}),  # over two inputs
        (lambda x, w, v, r: (lambda y: (y, y.relu()))(F.linear(x, w)), {"Linear": 1, "Pointwise": 1}),  # a result
        (lambda x, w, v, r: (lambda y: y.flip(1) + y)(F.linear(x, w)), {"Linear": 1, "Pointwise": 1, "Kernel": 1}),
        (lambda x, w, v, r: (lambda y: y[:, :16] * y[:, 16:])(F.linear(x, w)), {"Linear": 1, "Pointwise": 1}),  # halves
        (lambda x, w, v, r: F.linear(x, w).expand(3, 32) + 1, {"Linear": 1, "Pointwise": 1}),  # grows
        (lambda x, w, v, r: F.linear(x, w) > 0, {"Linear": 1, "Pointwise": 1}),  # no floats
        (lambda x, w, v, r: (r.copy_(F.linear(x, w) + r), r.sum())[1], {"Linear": 1, "Kernel": 1, "Pointwise": 0}),
    ),
)
def test_arithmetic_moves_into_layers(function: Function, left: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    module = fusion.fuse_pointwise(lowered(function, *LAYER_INPUTS, monkeypatch=monkeypatch))
    found = kinds(fusion_linear.fuse_epilogues(module))
    for name, n in left.items():
        assert found[name] >= n if "Kernel" in left else found[name] == n, (name, found)
    torch._dynamo.reset()
    run(function, LAYER_INPUTS, "full", monkeypatch, 2e-5)


def test_an_epilogue_waits_for_nothing_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer may not move behind a write to what it reads."""

    def f(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> Any:
        y = F.linear(x, w)
        x.index_copy_(0, i, s)
        return y * x.sum()

    run(f, (noise(2, 16), noise(4, 16), torch.tensor([1]), noise(1, 16)), "full", monkeypatch, 1e-4)


class Projections(nn.Module):
    """Layers over one input whose results are summed, so that none is a result of the graph."""

    def __init__(self, rows: tuple[int, ...], bias: bool, dtype: torch.dtype = F32, tie: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(32, n, bias=bias, dtype=dtype) for n in rows)
        if tie:
            self.layers[1].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> Any:
        return [layer(x).sum(-1) for layer in self.layers]


@pytest.mark.parametrize(
    ("rows", "bias", "tie", "batch", "launches"),
    (
        ((16, 8, 8), False, False, 1, 1),
        ((16, 8, 8), True, False, 1, 1),
        ((16, 16), False, True, 1, 1),  # the same weight twice is one layer
        ((16, 8), False, False, 2, 2),  # more than one row
        ((16, 9), True, False, 1, 2),  # rows that would not be aligned
    ),
)
def test_sibling_layers(
    rows: tuple[int, ...], bias: bool, tie: bool, batch: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_level("full", monkeypatch)
    here, there = Projections(rows, bias, tie=tie), Projections(rows, bias, tie=tie).to(DEVICE)
    x = noise(batch, 32)
    first = len(backend.compiled)
    with torch.no_grad():
        got, want = torch.compile(there, backend="webgpu")(x.to(DEVICE)), here(x)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)
    ((plan,),) = [g.plans for g in backend.compiled[first:]]
    assert sum("linear" in d.name for d in plan.dispatches) == launches
    for name, value in here.state_dict().items():
        assert torch.equal(there.state_dict()[name].cpu(), value)


def test_weights_that_others_see_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    at_level("full", monkeypatch)
    model = Projections((16, 8), False).to(DEVICE)
    weight: torch.Tensor = model.layers[0].weight  # type: ignore[assignment]
    seen = weight.detach()  # shares the memory, as a state dict does
    x = noise(1, 32).to(DEVICE)
    compiled = torch.compile(model, backend="webgpu")
    with torch.no_grad():
        compiled(x)
        seen.zero_()
        assert weight.abs().max().item() == 0
        assert compiled(x)[0].item() == 0


def test_laid_out_weights_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimisers and state dicts made before compilation go on with the parameters."""
    at_level("full", monkeypatch)
    here, there = Projections((16, 8), True), Projections((16, 8), True).to(DEVICE)
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (here, there)]
    compiled = torch.compile(there, backend="webgpu")
    for seed in range(3):
        x = noise(1, 32, seed=seed)
        for model, optimiser, value in ((here, steps[0], x), (compiled, steps[1], x.to(DEVICE))):
            optimiser.zero_grad()
            sum(y.square().sum() for y in model(value)).backward()  # type: ignore[union-attr]
            optimiser.step()
    for name, want in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), want, rtol=1e-4, atol=1e-4)


def test_sibling_groups() -> None:
    graph = fx.Graph()
    x, *ws = (graph.placeholder(n) for n in ("x", "a", "b", "c"))
    graph.output(tuple(graph.call_function(F.linear, (x, w)) for w in ws))
    module = fx.GraphModule(nn.Module(), graph)

    def packed(*weights: torch.Tensor) -> int:
        return siblings.lay_out_siblings(module, [torch.ones(1, 4), *weights])

    put = lambda *s: nn.Parameter(torch.ones(*s, device=DEVICE))  # noqa: E731
    a, b, c = put(4, 4), put(8, 4), put(4, 4)
    assert packed(a, b, c) == 1 and packed(a, b, c) == 0, "once is enough"
    assert a.untyped_storage().data_ptr() == c.untyped_storage().data_ptr() and b.storage_offset() == 16
    assert packed(put(4, 4), put(4, 8), put(4, 4)) == 0, "other inputs"
    assert packed(put(4, 4), put(3, 3), put(4, 4)) == 0
    assert packed(d := put(4, 4), d, put(4, 4)) == 0, "one weight twice"
    assert packed(torch.ones(4, 4), torch.ones(4, 4), torch.ones(4, 4)) == 0, "on the CPU"
    assert packed(put(4, 4), put(8, 4)[2:6], put(4, 4)) == 0, "a part of a buffer"
    assert packed(put(4, 4), put(4, 4).half(), put(4, 4)) == 0


def test_expansion_leaves_launches_only(monkeypatch: pytest.MonkeyPatch) -> None:
    module = lowered(lambda x, g, w: F.linear(rms(x.expand(40, 64), g), w), ROW, GAIN, W, monkeypatch=monkeypatch)
    assert {RmsNorm, Linear} <= {type(s) for s in module.steps}
    assert {type(s) for s in passes.expand(module).steps} <= {Kernel, Pointwise}


# ---------------------------------------------------------------------------------------------------- memory and plans


def test_memory_is_shared_by_what_does_not_live_together() -> None:
    life = memory.Lifetime
    placement = memory.plan([life("a", 1000, 0, 1), life("b", 1000, 1, 2), life("c", 900, 2, 3)], set(), 1 << 20)
    assert placement.arenas == (2048,) and placement.offsets["a"] == placement.offsets["c"] != placement.offsets["b"]
    placement = memory.plan([life("a", 8, 0, 1), life("b", 8, 1, 2)], {frozenset("ab")}, 1 << 20)
    assert placement.arenas == (256, 256), "what one launch reads and writes lies in two buffers"
    placement = memory.plan([life("a", 600, 0, 1), life("b", 600, 0, 1), life("c", 5000, 0, 1)], set(), 1024)
    assert sorted(placement.arenas) == [768, 768, 5120], "a large one has an arena to itself"
    assert memory.plan([], set(), 1024).arenas == ()


def test_memory_plans_never_overlap() -> None:
    for seed in range(200):
        pick = random.Random(seed)
        lives = []
        for i in range(pick.randrange(1, 25)):
            first = pick.randrange(20)
            lives.append(memory.Lifetime(i, pick.choice((1, 4, 255, 256, 257, 3000)), first, first + pick.randrange(6)))
        apart = {frozenset(pick.sample(range(len(lives)), 2)) for _ in range(pick.randrange(9)) if len(lives) > 1}
        placement = memory.plan(lives, apart, 2048)
        for a in lives:
            arena, at = placement.offsets[a.buffer]
            assert at % memory.ALIGNMENT == 0 and at + a.size <= placement.arenas[arena]
            for b in lives[: a.buffer]:
                other, start = placement.offsets[b.buffer]
                together = a.first <= b.last and b.first <= a.last
                assert other != arena or not together or at + a.size <= start or start + b.size <= at
                assert other != arena or frozenset((a.buffer, b.buffer)) not in apart


def test_a_plan_has_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries in arenas, results with buffers of their own, views and inputs by reference."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = (x @ y).softmax(-1)
        return z, z[1:], x, (z @ y).sum()

    module = passes.fuse(lowered(f, noise(4, 4), noise(4, 4, seed=1), monkeypatch=monkeypatch), "full")
    plan = assemble(module)
    assert plan.outputs == 2 and plan.arenas and sum(plan.arenas) <= 1024
    outputs, arenas, steps, _, _, returned = plan.recipe
    assert len(steps) == len(plan.dispatches) == len(module.steps) and list(plan.arenas) == arenas
    assert [o[0] for o in outputs[:2]] == [-1, -1] and len(returned) == 3  # Dynamo returns x itself


def test_half_precision_neighbours_of_a_slice_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan writes part of a fresh tensor: elements that share its last word stay."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z[:5] = y
        z[6:7] = 9
        return z

    for dtype in (F16, torch.bfloat16, torch.int8, torch.uint8):
        torch._dynamo.reset()
        run(f, (torch.arange(9).to(dtype), torch.arange(5).to(dtype)), "full", monkeypatch)
