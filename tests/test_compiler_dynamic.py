"""Sizes that change from call to call: random graphs and models compiled once, against eager PyTorch on the CPU."""

from __future__ import annotations

import copy
import math
from typing import Any

import models
import pytest
import torch
from compiling import DEVICE, at_every_level, level, same  # noqa: F401
from graph_layers import chain, gated, norm, normed, projections
from graph_ops import binary, clamp, compare, curved, join, matrix, reduce, rotated, select, smooth, unary, view
from graphs import Builder, Drawn, Rejected
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import nn

from torch_webgpu.compiler import backend, executor

LENGTH = 7  # as drawn; no other size of a graph is as large, so that what has it follows the length
LENGTHS = (LENGTH, 1, 2, 19, 130)
KINDS = (binary, view, unary, smooth, reduce, matrix, join, select, compare, clamp, curved, rotated)
LAYERS = (norm, gated, projections, chain, normed)


def draw(b: Builder) -> Drawn:
    """Inputs with a dimension of changing length and others; ops; outputs."""
    b.plain = True
    for _ in range(b.integer(1, 2)):
        width = b.choose((8, 16, 1, 3))
        dtype = b.choose((torch.float32, torch.float32, torch.int64, torch.bool))
        b.new_input(b.choose(((LENGTH, width), (1, LENGTH, width), (width, LENGTH), (LENGTH,))), dtype)
    for _ in range(b.integer(1, 8)):
        try:
            b.choose((*KINDS, *LAYERS))(b)
        except Rejected:
            continue
    return b.finish([b.values[-1], *(b.choose(b.values) for _ in range(b.integer(0, 2)))])


def of_length(drawn: Drawn, length: int) -> list[torch.Tensor]:
    """The inputs on the CPU, as long as that."""
    made = []
    for layout in drawn.layouts:
        sizes = [length if n == LENGTH else n for n in layout.sizes]
        base = drawn.bases[layout.base]
        repeats = math.ceil(math.prod(sizes) / base.numel()) if base.numel() else 1
        made.append(base.repeat(repeats)[: math.prod(sizes)].reshape(sizes))
    return made


def close(got: Any, want: Any) -> None:
    """Within the rounding of a few ops of numbers that large."""
    for x, y in zip(got, want, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        if not y.dtype.is_floating_point:
            assert torch.equal(x.cpu(), y)
            continue
        finite = y[y.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        torch.testing.assert_close(x.cpu(), y, rtol=1e-3, atol=1e-4 * max(largest, 1.0), equal_nan=True)


# Dynamo's tracing with symbols takes far longer than a graph of the other random tests.
@settings(max_examples=max(settings().max_examples // 4, 1))
@given(st.data())
@at_every_level
def test_random_graphs_of_every_length(level: str, data: Any) -> None:  # noqa: F811
    drawn = draw(Builder(lambda options: data.draw(st.sampled_from(options)), dtypes=(torch.float32,)))
    note(f"{drawn.module.graph}\n{drawn.layouts}\n{drawn.bases}")
    check_lengths(drawn)


def check_lengths(drawn: Drawn) -> None:
    """Results at every length that eager PyTorch accepts; one graph for all but a length of one."""
    torch._dynamo.reset()
    compiled = torch.compile(drawn.module, backend="webgpu", dynamic=True)
    for length in LENGTHS:
        here = of_length(drawn, length)
        try:
            want = drawn.module(*here)
        except (RuntimeError, IndexError):  # a size of the graph is a number that fits the drawn length alone
            continue
        close(compiled(*(x.to(DEVICE) for x in here)), want)


def test_plans_of_lengths_that_do_not_come_back_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ones used last stay."""
    monkeypatch.setattr(executor, "MOST_PLANS", 3)
    made = []
    original = executor.CompiledGraph._plan

    def spy(self: executor.CompiledGraph, metas: Any) -> Any:
        made.append(metas)
        return original(self, metas)

    monkeypatch.setattr(executor.CompiledGraph, "_plan", spy)
    compiled = torch.compile(lambda x: x * 2 + 1, backend="webgpu", dynamic=True)
    for length, planned in ((5, 1), (6, 2), (7, 3), (5, 3), (8, 4), (5, 4), (7, 4), (6, 5), (5, 5), (8, 6), (7, 7)):
        x = torch.arange(float(length))
        assert torch.equal(compiled(x.to(DEVICE)).cpu(), x * 2 + 1)
        assert len(made) == planned, length
    assert len(backend.compiled[-1].plans) == 3


# ---------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(("name", "how"), (("qwen2-4-2", "marked"), ("gpt2-2", "dynamic")))
def test_a_model_of_every_length_is_compiled_once(name: str, how: str) -> None:
    """A length of one apart, which Dynamo takes for a constant. A new length makes a plan of pipelines that are there."""
    model = models.causal(name)
    compiled = torch.compile(copy.deepcopy(model).to(DEVICE), backend="webgpu", dynamic=True if how == "dynamic" else None)
    before = len(backend.compiled)
    for length in (5, 1, 2, 3, 17, 64, 127, 1, 2, 33):
        ids = torch.randint(1, models.VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))
        there = ids.to(DEVICE)
        if how == "marked":
            torch._dynamo.mark_dynamic(there, 1)
        with torch.no_grad():
            got, want = compiled(input_ids=there, use_cache=False).logits, model(input_ids=ids, use_cache=False).logits
        same(got / want.abs().max().to(DEVICE), want / want.abs().max(), 1e-5)
    every, single = backend.compiled[before:]
    assert not every.degraded and not single.degraded
    assert (len(every.plans), len(single.plans)) == (7, 1)


def test_batch_norm_trains_with_batches_of_every_size() -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    there = copy.deepcopy(here).to(DEVICE)
    compiled = torch.compile(there, backend="webgpu", dynamic=True)
    backend.compiled.clear()
    for size in (4, 2, 7):
        x = torch.randn(size, 1, 5, 5)
        want, got = here(x), compiled(x.to(DEVICE))
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-5)
        want.square().sum().backward()
        got.square().sum().backward()
    for name, want in (*here.named_buffers(), *((n, p.grad) for n, p in here.named_parameters())):
        got = there.get_buffer(name) if "running" in name or "num" in name else there.get_parameter(name).grad
        assert got is not None
        torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3)
    assert len(backend.compiled) == 2 and not any(graph.degraded for graph in backend.compiled)
