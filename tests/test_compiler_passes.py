"""Each pass on the graph alone, on a tiny one: what it finds, and what it must leave alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from compiling import (
    CAUSAL,
    DEVICE,
    F16,
    F32,
    FEW,
    HEADS,
    Function,
    at_level,
    count,
    noise,
    repeated,
    rms,
    rope,
    run,
    tensors,
    traced,
)
from torch import fx, nn

from torch_webgpu.compiler import backend, patterns
from torch_webgpu.compiler.aliasing import keep_apart, memory_of, result_memory, written
from torch_webgpu.compiler.attention_patterns import ATTENTION, DECODE_ATTENTION, ROPE, attentions, rotary_embeddings
from torch_webgpu.compiler.layer_patterns import LINEAR, RMS_NORM, linears, rms_norms
from torch_webgpu.compiler.matching import simplify
from torch_webgpu.compiler.prepare import (
    NotTraceableError,
    alias_pattern,
    may_mutate,
    overlap,
    prepare,
    takes_storage_offsets,
)

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No guards of an earlier test."""
    torch._dynamo.reset()


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
    "function",
    (
        lambda n, x: (torch.arange(1, device=x.device) + n, n + torch.zeros(1, dtype=torch.int64, device=x.device)),
        lambda n, x: (torch.ones(1, device=x.device) * n, n * x, x + n),
        lambda n, x: n * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        lambda n, x: x * n + torch.cat((-x[..., 4:], x[..., :4]), -1) * (n + 1),
    ),
)
def test_numbers_that_change_are_no_tensors(function: Function) -> None:
    """Symbols stand in a graph where tensors might: no pattern takes them for one."""
    compiled, before, x = torch.compile(function, backend="webgpu", dynamic=True), len(backend.compiled), noise(3, 8)
    for n in (4, 3, 9):
        for got, want in zip(tensors(compiled(n, x.to(DEVICE))), tensors(function(n, x)), strict=True):
            torch.testing.assert_close(got.cpu(), want)
    assert len(backend.compiled) == before + 1 and not backend.compiled[-1].degraded


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
    for got, want in zip(tensors([module(x), x]), tensors([function(y), y]), strict=False):
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
