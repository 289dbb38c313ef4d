"""Generation on compiled plans against the CPU: tokens, logits, interrupts, bad input."""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from generating import (  # noqa: F401
    DEVICE,
    Logging,
    difference,
    expected_rows,
    greedy,
    no_fallbacks,
    prompt_of,
    small,
    small_generator,
)
from scipy import stats
from test_gguf import write_model

from torch_webgpu.compiler import executor
from torch_webgpu.llm import Generator, Sampling, load
from torch_webgpu.llm.generator import padded_size


@pytest.mark.parametrize(("head", "layer"), [("Q8_0", "Q4_1"), ("Q4_0", "Q4_0"), ("Q8_0", "Q8_0")])
def test_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, layer: str) -> None:
    """Weights as the file has them, against what transformers dequantises."""
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: None)  # the file has none
    torch.manual_seed(3)
    write_model(tmp_path / "tiny.gguf", head, layer)
    model, _ = load(str(tmp_path / "tiny.gguf"), quantize="gguf")
    reference, _ = load(str(tmp_path / "tiny.gguf"), device="cpu")
    generator = Logging(model, 48, compile_prompts=False)
    tokens = generator([3, 1, 4], 40, eos=())
    want = expected_rows(reference, [3, 1, 4], tokens)
    assert tokens == want.argmax(1).tolist()
    assert difference(generator.rows[:40], want) < 1e-4


# ---------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("name", ["qwen2-6-1", "llama-2-1-dim48", "gpt2-2"])
def test_families(name: str) -> None:
    reference, model = small(name)
    generator = Generator(model, 64)
    for size in (1, 9):
        assert generator(prompt_of(size), 24, eos=()) == greedy(reference, prompt_of(size), 24)


@pytest.mark.parametrize("name", models.WINDOWED)
def test_sliding_windows(name: str) -> None:
    """Windows shorter than prompt and text."""
    reference, model = small(name)
    generator = Generator(model, 64)
    for size in (3, 40):
        assert generator(prompt_of(size), 20, eos=()) == greedy(reference, prompt_of(size), 20)


def test_every_length_of_prompt() -> None:
    """Up to the whole cache, where one token fits: it is never written."""
    reference, generator = small()[0], small_generator()
    for size in (1, 2, 15, 16, 17, 33, 63, 64):
        count = min(5, 64 - size + 1)
        assert generator(prompt_of(size), count, eos=()) == greedy(reference, prompt_of(size), count), size
    assert len(generator(prompt_of(9), 56, eos=())) == 56
    for size in range(1, 300):
        assert size <= padded_size(size, 300) <= min(max(size + 15, size * 5 // 4), 300)


def test_stopping_loses_and_invents_nothing() -> None:
    generator = small_generator()
    want = generator(prompt_of(9), 40, eos=())
    for count in (1, 2, 3, 17):
        tokens = generator.stream(prompt_of(9), 40, eos=())
        assert [next(tokens) for _ in range(count)] == want[:count]
        tokens.close()  # type: ignore[attr-defined]
    for at in (0, 1, 9, 30):
        assert generator(prompt_of(9), 40, eos=[want[at], 9999]) == want[: want.index(want[at]) + 1]
    assert generator(prompt_of(9), 40, eos=want[9]) == want[: want.index(want[9]) + 1]
    assert generator(prompt_of(9), 40, eos=()) == want
    assert generator(prompt_of(9), 1, eos=()) == want[:1]


def test_end_tokens_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = small_generator()
    want = generator(prompt_of(9), 40, eos=())
    for ends in (want[5], [want[7], want[5]]):
        monkeypatch.setattr(generator.model.generation_config, "eos_token_id", ends)
        stops = {ends} if isinstance(ends, int) else set(ends)
        assert generator(prompt_of(9), 40) == want[: min(want.index(token) for token in stops) + 1]


@torch._dynamo.config.patch(recompile_limit=1)
def test_many_generators() -> None:
    """More than Dynamo compiles of one function; plans and caches of those that are gone are gone."""
    _, model = small("qwen2-6-1")
    want, used = None, []
    for length in range(20, 23):
        generator = Generator(model, length, compile_prompts=False)
        tokens = generator(prompt_of(3), 10, eos=())
        want = want or tokens
        assert tokens == want
        del generator
        gc.collect()
        used.append(torch.get_device_module(DEVICE).memory_allocated())
    assert used[-1] <= used[1] + (1 << 16)


def test_memory_is_bounded() -> None:
    generator = small_generator()
    for _ in range(3):
        next(generator.stream(prompt_of(9), 40))
    torch.get_device_module(DEVICE).synchronize()
    before = torch.get_device_module(DEVICE).memory_allocated()
    for _ in range(20):
        tokens = generator.stream(prompt_of(9), 40)
        for _ in range(3):
            next(tokens)
    assert torch.get_device_module(DEVICE).memory_allocated() <= before + (1 << 16)
    assert len(generator._unread) <= 2


def test_another_generation_ends_a_stream() -> None:
    generator = small_generator()
    first = generator.stream(prompt_of(9), 40)
    next(first)
    second = generator(prompt_of(5), 10, eos=())
    with pytest.raises(RuntimeError, match="another generation was begun"):
        list(first)
    assert second == generator(prompt_of(5), 10, eos=())


def test_generators_of_one_model_take_turns() -> None:
    """Each with its cache, its way of sampling and its random numbers."""
    model = small()[1]
    likeliest, drawing = small_generator(), Generator(model, 48, Sampling(1.5, 40), compile_prompts=False)
    want = likeliest(prompt_of(9), 30, eos=()), drawing(prompt_of(5), 30, eos=(), seed=7)
    streams = likeliest.stream(prompt_of(9), 30, eos=()), drawing.stream(prompt_of(5), 30, eos=(), seed=7)
    got = list(zip(*streams, strict=True))
    assert ([a for a, _ in got], [b for _, b in got]) == want


def test_distribution_of_generated_tokens() -> None:
    """A model whose logits are the same at every position: each replayed step draws from them, whatever came before."""
    model = models.causal("llama-3-1")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight[:1].expand(models.VOCABULARY, -1))
        model.lm_head.weight[1:8] = model.lm_head.weight[:1] * torch.linspace(0.5, 1.5, 7)[:, None]
        logits = model(torch.tensor([[3]])).logits[0, 0]
    generator = Generator(model.to(DEVICE), 256, Sampling(2.0, 4), compile_prompts=False)
    torch.manual_seed(11)
    drawn = [generator([3], 256, eos=()) for _ in range(4)]
    likeliest = logits.topk(4)
    p = torch.softmax(likeliest.values / 2.0, 0).double()
    places = [[likeliest.indices.tolist().index(token) for token in tokens] for tokens in drawn]
    single = torch.bincount(torch.tensor(places).flatten(), minlength=4)
    pairs = torch.bincount(torch.tensor([4 * a + b for row in places for a, b in itertools.pairwise(row)]), minlength=16)
    for counts, expected in ((single, p), (pairs, torch.outer(p, p).flatten())):
        assert stats.chisquare(counts.numpy(), (expected * counts.sum() / expected.sum()).numpy()).pvalue > 1e-4, counts


def test_sampling() -> None:
    generator = Generator(small()[1], 64, Sampling(1.5, 40, 0.95), compile_prompts=False)
    torch.manual_seed(4)
    state = torch.get_device_module(DEVICE).get_rng_state()
    first, again, other = (generator(prompt_of(9), 24, seed=seed) for seed in (1, 1, 2))
    assert first == again != other and len(set(first)) > 5
    assert torch.equal(torch.get_device_module(DEVICE).get_rng_state(), state)  # a seeded generation has its own numbers
    tokens = generator.stream(prompt_of(9), 24, seed=1)
    mixed = []
    for token in tokens:
        mixed.append(token)
        torch.rand(5, device=DEVICE)  # nobody else's draws matter
    assert mixed == first
    torch.manual_seed(4)
    free = generator(prompt_of(9), 24)
    torch.manual_seed(4)
    assert free == generator(prompt_of(9), 24) != first
    narrow = Generator(small()[1], 64, Sampling(1.0, 1), compile_prompts=False)
    assert narrow(prompt_of(9), 24, seed=3) == small_generator()(prompt_of(9), 24)


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [(executor, "lower", 0), (executor, "lower", 1), (executor.CompiledGraph, "run", 6), (Generator, "_finish", 4)],
)
def test_interrupts(owner: Any, name: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a prompt or the step is compiled, while steps are queued, while tokens are waited for."""
    reference, model = small()
    generator, tokens = Generator(model, 64), list[int]()
    function, calls = getattr(owner, name), itertools.count()

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == after:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            for token in generator.stream(prompt_of(9), 50, eos=()):
                tokens.append(token)
    want = greedy(reference, prompt_of(9), 50)
    assert tokens == want[: len(tokens)] and len(tokens) < 50
    assert generator(prompt_of(9), 50, eos=()) == want


def test_inference_mode() -> None:
    reference, model = small()
    with torch.inference_mode():
        generator = Generator(model, 32, compile_prompts=False)
        inside = generator(prompt_of(4), 8, eos=())
    assert inside == generator(prompt_of(4), 8, eos=()) == greedy(reference, prompt_of(4), 8)


def test_a_table_beyond_a_binding() -> None:
    """150 MB of embedding and head: more than the specification's 128 MiB a binding."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=600_000,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    reference = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        reference.model.embed_tokens.weight[:500_000] *= 0.1  # the likeliest tokens lie in the last window
    prompt = [599_999, 7, 530_000]
    want = greedy(reference, prompt, 4)
    assert max(want) > 500_000
    generator = Generator(copy.deepcopy(reference).to(DEVICE), 16, compile_prompts=False)
    assert generator(prompt, 4, eos=()) == want


# ---------------------------------------------------------------------------------------------------- errors


@pytest.fixture
def poisoned() -> Iterator[tuple[Generator, Callable[[], None], Callable[[], None]]]:
    """A generator, and what makes its logits NaN and good again."""
    generator = small_generator()
    weight = generator.model.lm_head.weight
    good = weight.detach().clone()

    def spoil() -> None:
        with torch.no_grad():
            weight[3] = float("nan")

    def heal() -> None:
        with torch.no_grad():
            weight.copy_(good)

    yield generator, spoil, heal
    heal()


def test_nan_logits(poisoned: tuple[Generator, Callable[[], None], Callable[[], None]]) -> None:
    generator, spoil, heal = poisoned
    want = generator(prompt_of(9), 20, eos=())
    spoil()
    with pytest.raises(RuntimeError, match="the logits of a row hold NaN"):
        generator(prompt_of(9), 20, eos=())
    heal()
    assert generator(prompt_of(9), 20, eos=()) == want
    tokens = generator.stream(prompt_of(9), 20, eos=())
    assert [next(tokens), next(tokens)] == want[:2]
    spoil()  # noticed in tokens that are queued already or come later, or by nobody
    tokens.close()  # type: ignore[attr-defined]
    heal()
    assert generator(prompt_of(9), 20, eos=()) == want


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_overflowing_half_precision(temperature: float) -> None:
    """A residual stream beyond float16's range is an error, never gibberish; the cache is clean again afterwards."""
    reference = models.causal("llama-3-1")
    with torch.no_grad():
        reference.model.layers[0].mlp.down_proj.weight *= 1e6
    generator = Generator(reference.half().to(DEVICE), 32, Sampling(temperature), compile_prompts=False)
    with pytest.raises(RuntimeError, match="look for an overflow in the model, as float16 activations"):
        generator(prompt_of(9), 8)
    with torch.no_grad():
        generator.model.model.layers[0].mlp.down_proj.weight.zero_()
    assert len(generator(prompt_of(3), 8, seed=1)) == 8


def test_bad_input() -> None:
    _, model = small()
    generator = small_generator()
    for prompt, count, message in (
        ([], 4, "the prompt is empty"),
        (torch.zeros(2, 4, dtype=torch.int64), 4, r"shape \[2, 4\]: this generates one sequence at a time"),
        ([1.5], 4, "tokens are integers"),
        ([1, models.VOCABULARY], 4, "outside of the vocabulary of 199"),
        ([-1], 4, "outside of the vocabulary"),
        (prompt_of(65), 1, "65 tokens of prompt and 1 new ones do not fit a cache of 64; make it with length=65"),
        (prompt_of(60), 6, "do not fit a cache of 64; make it with length=65"),
        (prompt_of(3), 0, "max_new_tokens must be a whole number of at least 1, got 0"),
        (prompt_of(3), 2.5, "max_new_tokens must be a whole number of at least 1, got 2.5"),
        ("a text", 4, "a prompt is the token ids of one text.*got 'a text'"),
        ([1, None] * 30, 4, "a prompt is the token ids of one text.*got .1, None, 1, .* \\.\\.\\."),
    ):
        with pytest.raises(ValueError, match=message):
            generator.stream(prompt, count)  # type: ignore[arg-type] # at once, not with the first token
    for length in (1, 257, 2.5):
        with pytest.raises(ValueError, match=f"a cache of {length} tokens: between 2 and 256 are possible"):
            Generator(model, length)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"move it with model\.to\('webgpu'\)"):
        Generator(small()[0], 16)
    with pytest.raises(ValueError, match=r"call model\.eval"):
        Generator(copy.deepcopy(model).train(), 16)
    for arguments, message in (
        ((-1.0,), "temperature"),
        ((1.0, 0), "top_k"),
        ((1.0, 2.5), "top_k"),
        ((1.0, None, 0.0), "top_p"),
    ):
        with pytest.raises(ValueError, match=message):
            Sampling(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"dtype must be float32, float16 or bfloat16 on webgpu, not torch\.float64"):
        load(dtype=torch.float64)


def test_overflow_of_the_cache() -> None:
    generator = Generator(small()[1], 16, compile_prompts=False)
    with pytest.raises(RuntimeError, match="prefill comes first"):
        generator.advance(1)
    generator.prefill(prompt_of(10))
    with pytest.raises(ValueError, match=r"cache overflow: it holds 10 of 16 tokens, 7 more do not fit.*length=17"):
        generator.advance(7)
    generator.advance(6)
