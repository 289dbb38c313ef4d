"""Each pass on the lowered steps alone: what is fused, what must stay apart, where memory lies, what a plan has."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from compiling import DEVICE, F16, F32, GAIN, ROW, Function, V, W, at_level, kinds, lowered, noise, rms, run, swiglu
from torch import fx, nn

from torch_webgpu.compiler import backend, executor, fusion, fusion_linear, lower, memory, passes, siblings
from torch_webgpu.compiler.ir import Kernel, Module, Pointwise
from torch_webgpu.compiler.linear import Linear, RmsNorm
from torch_webgpu.compiler.plan import assemble

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No guards of an earlier test."""
    torch._dynamo.reset()


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
        (lambda x, y: y.exp().expand(4, 6) + x, {"Pointwise": 1}),
        (lambda x, y: y.exp().expand(999, 6) + 1, {"Pointwise": 2}),  # would be computed a thousand times
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


def test_sibling_weights_take_their_memory_once() -> None:
    """What they lay in before is given back: the allocator would keep buffers of a size that nothing else has."""
    device: Any = torch.get_device_module(DEVICE)
    layers = [torch.nn.Linear(512, 512 + 256 * i, bias=False).to(DEVICE) for i in range(3)]
    x = torch.randn(1, 512).to(DEVICE)
    torch.compile(lambda x: x * 2, backend="webgpu")(x)
    device.synchronize()
    device.empty_cache()
    before, weights = device.memory_reserved(), sum(layer.weight.nbytes for layer in layers)
    with torch.no_grad():
        torch.compile(lambda x: [layer(x) for layer in layers], backend="webgpu")(x)
    assert len({layer.weight.untyped_storage().data_ptr() for layer in layers}) == 1
    assert device.memory_reserved() - before < weights / 4


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
