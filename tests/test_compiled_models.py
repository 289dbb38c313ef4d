"""Whole models through ``torch.compile(backend="webgpu")``, against PyTorch on the CPU."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import models
import pytest
import torch
from modelling import case, close, dispatches, first, fresh, graphs, move, small_cnn  # noqa: F401
from torch import Tensor, nn

from torch_webgpu.compiler import backend
from torch_webgpu.compiler.executor import CompiledGraph
from torch_webgpu.llm.generator import Generator, padded_size

LEVELS = ("none", "pointwise", "full")


# Launches at the levels none, pointwise and full: fewer is progress, more is a fusion that was lost.
MOST = {
    "qwen2-4-2": (119, 69, 42),
    "gpt2-2": (67, 36, 30),
    "bert-4": (50, 37, 31),
    "dinov2-2-swiglu": (37, 31, 25),
    "cnn": (26, 19, 9),
}


@pytest.mark.parametrize("name", MOST)
def test_small_models_at_every_level(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced once, compiled at each level."""
    results: dict[str, Any] = {}

    def each_level(module: Any, inputs: Any) -> Any:
        runs = {}
        for level in LEVELS:
            monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=level))
            runs[level] = backend.webgpu(module, inputs)

        def call(*args: Any) -> Any:
            results.update({level: run(*args) for level, run in runs.items()})
            return results["full"]

        return call

    model, inputs = case(name)
    with torch.no_grad():
        expected = first(model(**inputs))
        got = first(torch.compile(copy.deepcopy(model).to("webgpu"), backend=each_level)(**move(inputs)))
    close(got, expected, 1e-4)
    for level in LEVELS:
        found = [t for t in results[level] if t.shape == expected.shape]
        close(found[0], expected, 1e-4)
    graphs(3)
    counts = dict(zip(LEVELS, dispatches(), strict=True))
    assert all(n <= most for n, most in zip(counts.values(), MOST[name], strict=True)), counts


@pytest.mark.parametrize("name", ["qwen2-6-1", "bert-3", "cnn"])
def test_half_precision(name: str) -> None:
    model, inputs = case(name)
    with torch.no_grad():
        expected = first(model(**inputs))
        got = first(torch.compile(copy.deepcopy(model).half().to("webgpu"), backend="webgpu")(**move(inputs, torch.float16)))
    assert got.dtype == torch.float16
    close(got, expected, 2e-2)
    graphs(1)


def test_sentence_encoder_with_its_weights() -> None:
    model, tokenizer = models.minilm()
    inputs = dict(tokenizer(["A cat sits.", "The stock market fell sharply today."], padding=True, return_tensors="pt"))
    with torch.no_grad():
        expected = first(model(**inputs))
        got = first(torch.compile(model.to("webgpu"), backend="webgpu")(**move(inputs)))
    close(got, expected, 1e-4)
    graphs(1)


def test_efficientnet_with_its_weights() -> None:
    model, picture = models.efficientnet_lite0(), models.sample_picture()
    with torch.no_grad():
        expected = model(picture)
        got = torch.compile(model.to("webgpu"), backend="webgpu")(picture.to("webgpu"))
    close(got, expected, 1e-4)
    assert got.argmax().item() == 652
    graphs(1)
    assert dispatches()[0] <= 51  # 49 convolutions, the mean, the last layer


# ---------------------------------------------------------------------------------------------------- fusion


def names() -> list[str]:
    return [d.name for d in graphs()[-1].plans[-1].dispatches]


def test_convolution_takes_norm_activation_residual_and_padding() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            padded = nn.functional.pad(x, (0, 2, 1, 1))
            return nn.functional.silu(self.norm(self.conv(padded)) + x)

    torch.manual_seed(0)
    block, x = Block().eval(), torch.randn(2, 8, 7, 9)
    with torch.no_grad():
        expected = block(x)
        got = torch.compile(copy.deepcopy(block).to("webgpu"), backend="webgpu")(x.to("webgpu"))
    close(got, expected, 1e-5)
    if torch.webgpu.get_device_properties().limits["maxStorageBuffersPerShaderStage"] >= 9:  # type: ignore[attr-defined]
        assert dispatches() == [1]


@pytest.mark.parametrize("pads", [(1, 1), (2, 0, 0, 3), (0, 0, 1, 2)])
@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (1, 2)}], ids=str)
def test_padding_goes_into_the_convolution(pads: tuple[int, ...], groups: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 6, 9, 8), torch.randn(12, 6 // groups, 3, 3), torch.randn(12)

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return nn.functional.conv2d(nn.functional.pad(x, pads), weight, bias, groups=groups, **options).relu()

    got = torch.compile(f, backend="webgpu")(*(t.to("webgpu") for t in (x, weight, bias)))
    close(got, f(x, weight, bias), 1e-5)
    assert names() == ["convolution+relu"]


def test_other_padding_stays() -> None:
    x, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    for pad, value in (((1, 1, 1, 1), 0.5), ((-1, -1), 0.0)):
        torch._dynamo.reset()

        def f(x: Tensor, weight: Tensor, pad: tuple[int, ...] = pad, value: float = value) -> Tensor:
            return nn.functional.conv2d(nn.functional.pad(x, pad, value=value), weight)

        close(torch.compile(f, backend="webgpu")(x.to("webgpu"), weight.to("webgpu")), f(x, weight), 1e-5)


@pytest.mark.parametrize("rows", [1, 40])
def test_products_with_weights_either_way_take_their_arithmetic(rows: int) -> None:
    torch.manual_seed(0)
    x, w, b, r = torch.randn(rows, 24), torch.randn(24, 20), torch.randn(20), torch.randn(rows, 20)

    def f(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        return nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh") + r

    got = torch.compile(f, backend="webgpu")(*(t.to("webgpu") for t in (x, w, b, r)))
    close(got, f(x, w, b, r), 1e-5)
    assert dispatches() == [1] or rows == 1  # few rows may be split over the sum


def test_transposed_operands_are_not_copied() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(24, 40), torch.randn(24, 20)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return x.t() @ w * 2

    got = torch.compile(f, backend="webgpu")(x.to("webgpu"), w.to("webgpu"))
    close(got, f(x, w), 1e-5)
    assert dispatches() == [1]


def test_rotary_embedding_of_unusual_layouts() -> None:
    def f(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * cos + torch.cat((-high, low), -1) * sin

    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float16):
        for x, table in (
            (torch.randn(2, 5, 3, 6).transpose(1, 2), torch.randn(1, 1, 5, 6)),
            (torch.randn(4, 10), torch.randn(4, 10)),
            (torch.randn(3, 2, 8)[:, :, :6], torch.randn(2, 1)),
        ):
            torch._dynamo.reset()
            x, cos, sin = (t.to(dtype) for t in (x, table, 1 - table))
            got = torch.compile(f, backend="webgpu", dynamic=False)(*(t.to("webgpu") for t in (x, cos, sin)))
            close(got, f(x.float(), cos.float(), sin.float()), 1e-5 if dtype == torch.float32 else 2e-3)
            assert names() == ["rope"]


# ---------------------------------------------------------------------------------------------------- dynamic shapes


def test_numbers_that_change_recompile_nothing() -> None:
    def f(x: Tensor, scale: float, shift: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + scale) * (scale + 1) + shift

    compiled = torch.compile(f, backend="webgpu", dynamic=True)
    x = torch.randn(4, 8)
    for scale in (0.5, 0.25, 3.0, -0.125):
        shift = torch.tensor(scale * 7)
        close(compiled(x.to("webgpu"), abs(scale), shift), f(x, abs(scale), shift), 1e-5)
    (graph,) = graphs(1)
    assert len(graph.plans) == 1


def test_numbers_after_a_product_are_not_frozen() -> None:
    def f(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return (x @ w) * scale

    compiled = torch.compile(f, backend="webgpu")
    x, w = torch.randn(40, 16), torch.randn(16, 12)
    for value in (2.0, -3.0, 0.5):
        scale = torch.tensor(value)
        close(compiled(x.to("webgpu"), w.to("webgpu"), scale), f(x, w, scale), 1e-5)
    graphs(1)


def test_growing_cache_compiles_twice() -> None:
    def step(cache: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        cache = torch.cat((cache, x), 1)
        return cache, (cache * cache).sum(1)

    compiled = torch.compile(step, backend="webgpu")
    cache = torch.randn(2, 3)
    on_device = cache.to("webgpu")
    for _ in range(40):
        x = torch.randn(2, 1)
        cache, expected = step(cache, x)
        on_device, got = compiled(on_device, x.to("webgpu"))
        close(got, expected, 1e-5)
    graphs(2)


@pytest.mark.parametrize("name", ["qwen2-4-2", "mistral-4-2", "gemma2-4-2"])
def test_generate_with_a_growing_cache_stays_compiled(name: str) -> None:
    """Whose windows move in Python, so that sizes and counts are symbols."""
    model = models.causal(name)
    ids = torch.randint(1, models.VOCABULARY, (1, 13), generator=torch.Generator().manual_seed(1))
    expected = model.generate(ids, max_new_tokens=14, do_sample=False)
    model = model.to("webgpu")
    model.forward = torch.compile(model.forward, backend="webgpu")
    torch._dynamo.utils.counters.clear()
    got = model.generate(ids.to("webgpu"), max_new_tokens=14, do_sample=False)
    assert torch.equal(got.cpu(), expected)
    assert 2 <= len(graphs()) <= 3  # the prompt, a first step, every other step
    assert not any("limit" in reason for reason in torch._dynamo.utils.counters["unimplemented"])


@pytest.mark.parametrize("name", models.WINDOWED)
def test_prompts_longer_than_a_window(name: str) -> None:
    model = models.causal(name)
    for length in (models.WINDOW, 3 * models.WINDOW + 1):
        ids = torch.randint(1, models.VOCABULARY, (1, length), generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits
            compiled = torch.compile(copy.deepcopy(model).to("webgpu"), backend="webgpu", dynamic=False)
            close(compiled(input_ids=ids.to("webgpu"), use_cache=False).logits, expected, 1e-5)
    graphs(2)


def test_generate_with_a_static_cache_stays_compiled() -> None:
    model = models.causal("llama-3-1")
    ids = torch.randint(1, models.VOCABULARY, (1, 6))
    options = {"max_new_tokens": 14, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(ids, **options)
    model = model.to("webgpu")
    model.forward = torch.compile(model.forward, backend="webgpu")
    got = model.generate(ids.to("webgpu"), **options)
    assert torch.equal(got.cpu(), expected)
    assert len(graphs()) <= 3
    assert len(backend.compiled[-1].plans) == 1


def test_prompts_of_every_length_share_a_graph_and_few_plans() -> None:
    model = models.causal("qwen2-6-1")
    generator = Generator(copy.deepcopy(model).to("webgpu"), 100)
    for length in (5, 40, 1, 33, 16, 17, 97):
        ids = torch.randint(1, models.VOCABULARY, (1, length))
        count = min(5, 100 - length)
        expected = model.generate(ids, max_new_tokens=count, do_sample=False)[0, length:].tolist()
        assert generator(ids, count) == expected, length
    prompt, step = graphs(2)
    assert len(prompt.plans) == len({padded_size(n, 100) for n in (5, 40, 33, 17, 97)})
    assert len(step.plans) == 1


def test_padded_sizes_are_few_and_near() -> None:
    for length in (2, 10, 100, 4096):
        sizes = [padded_size(n, length) for n in range(1, length)]
        assert all(n <= size <= length for n, size in enumerate(sizes, 1))
        assert all(size - n < max(16, n / 4) for n, size in enumerate(sizes, 1))
        assert len(set(sizes)) <= 45


# ---------------------------------------------------------------------------------------------------- pieces


def test_ops_with_several_results_at_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op without a lowering runs eagerly between two plans, also where tuples cross."""

    def f(x: Tensor) -> Tensor:
        values, places = torch.topk(x * 2, 3)
        mean, variance = torch.var_mean(values + 1, -1)
        return values * mean[:, None] + places.float() + variance[:, None]

    from torch_webgpu.compiler import lower

    original = lower._lower_op

    def without(graph: Any, op: Any, args: Any, kwargs: Any) -> Any:
        return NotImplemented if "topk" in str(op) or "var_mean" in str(op) else original(graph, op, args, kwargs)

    monkeypatch.setattr(lower, "_lower_op", without)
    x = torch.randn(4, 9)
    close(torch.compile(f, backend="webgpu")(x.to("webgpu")), f(x), 1e-5)
    assert backend.compiled[0].degraded


def test_pieces_run_op_by_op_where_their_plans_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused ops have an eager meaning."""
    from torch_webgpu.compiler import executor

    model, inputs = case("llama-3-1")
    with torch.no_grad():
        expected = first(model(**inputs))

    def assemble(*args: Any) -> Any:
        raise ValueError("no plan")

    compiled = torch.compile(copy.deepcopy(model).to("webgpu"), backend="webgpu")
    monkeypatch.setattr(executor, "assemble", assemble)
    degrade = CompiledGraph.__init__

    def from_rewritten(self: Any, module: Any, source: Any, fuse: Any) -> None:
        degrade(self, module, module, fuse)

    monkeypatch.setattr(CompiledGraph, "__init__", from_rewritten)
    with torch.no_grad():
        close(first(compiled(**move(inputs))), expected, 1e-4)
    assert backend.compiled[0].degraded


def test_a_decode_step_in_pieces_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op of the step that has no kernel costs speed alone."""
    from torch_webgpu.compiler import lower

    original = lower._lower_op

    def without(graph: Any, op: Any, args: Any, kwargs: Any) -> Any:
        return NotImplemented if "embedding" in str(op) or "silu" in str(op) else original(graph, op, args, kwargs)

    monkeypatch.setattr(lower, "_lower_op", without)
    model = models.causal("llama-3-1")
    ids = torch.randint(1, models.VOCABULARY, (1, 5))
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)[0, 5:].tolist()
    generator = Generator(model.to("webgpu"), 32, compile_prompts=False)
    assert generator(ids, 12) == expected
    assert [graph.degraded for graph in backend.compiled] == [True]
