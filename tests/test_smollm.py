"""SmolLM2-135M-Instruct with its weights, op by op and on compiled plans, against the CPU: tokens and logits."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from generating import DEVICE, Logging, difference, expected_rows, no_fallbacks  # noqa: F401
from stage import steps
from torch import Tensor, nn

from torch_webgpu.compiler import backend
from torch_webgpu.llm import load, quantize
from torch_webgpu.llm.quant import QuantisedEmbedding, QuantisedLinear

PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is"
TOLERANCE = 1e-4
STATIC = {"cache_implementation": "static", "disable_compile": True}


@pytest.fixture(scope="module")
def smol_cpu() -> tuple[Any, Any]:
    """Model and tokenizer on the CPU."""
    return load(device="cpu")


@pytest.fixture(scope="module")
def reference(smol_cpu: tuple[Any, Any]) -> Any:
    return smol_cpu[0]


@pytest.fixture(scope="module")
def smol(reference: Any) -> Any:
    """The model on the device."""
    return copy.deepcopy(reference).to(DEVICE)


@torch.no_grad()
def logits(model: Any, prompt: list[int]) -> Tensor:
    """Of every position."""
    return model(torch.tensor([prompt], device=model.device)).logits[0].float().cpu()


def generate(model: Any, prompt: list[int], count: int, **options: Any) -> list[int]:
    """New tokens, as transformers generates them; greedy unless the options say otherwise."""
    ids = torch.tensor([prompt], device=model.device)
    options = {"do_sample": False, "pad_token_id": 0} | options
    return model.generate(ids, max_new_tokens=count, min_new_tokens=count, **options)[0, len(prompt) :].tolist()


def first_layers(model: Any, count: int, dtype: torch.dtype = torch.float32) -> Any:
    """A copy of the first layers, with the head: real weights, quick to compile."""
    layers, model.model.layers = model.model.layers, model.model.layers[:count]
    short = copy.deepcopy(model)
    model.model.layers = layers
    short.config.num_hidden_layers = count
    return nn.Module.to(short, dtype)  # transformers refuses dtypes for GGUF files


# ---------------------------------------------------------------------------------------------------- op by op


def test_logits(reference: Any, smol: Any) -> None:
    assert difference(logits(smol, PROMPT), logits(reference, PROMPT)) < TOLERANCE


def test_tokenizer_and_greedy(smol_cpu: tuple[Any, Any], smol: Any) -> None:
    """Tokens are the CPU's, from a short prompt and from one after which the cache grows beyond 64."""
    reference, tokenizer = smol_cpu
    assert tokenizer("The capital of France is").input_ids == PROMPT
    long = tokenizer("It was the best of times, it was the worst of times. " * 4).input_ids[:57]
    assert len(long) == 57
    for prompt, count in ((PROMPT, steps(12, 4)), (long, steps(10, 3))):
        tokens = generate(smol, prompt, count)
        assert tokens == expected_rows(reference, prompt, tokens).argmax(1).tolist() and len(tokens) == count
        if prompt is PROMPT:
            assert tokenizer.decode(tokens).startswith(" Paris.")
            assert generate(smol, prompt, steps(5, 3), **STATIC) == tokens[: steps(5, 3)]


def test_sampling(smol: Any) -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(generate(smol, PROMPT, 2, do_sample=True, temperature=3.0, top_k=50))
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_half(smol_cpu: tuple[Any, Any], dtype: torch.dtype, bound: float) -> None:
    reference, tokenizer = smol_cpu
    model = nn.Module.to(copy.deepcopy(reference), dtype).to(DEVICE)  # transformers refuses dtypes for GGUF files
    assert difference(logits(model, PROMPT), logits(reference, PROMPT)) < bound
    text = tokenizer.decode(generate(model, PROMPT, 2))
    assert text.startswith(" Paris"), text


# ---------------------------------------------------------------------------------------------------- compiled


def check(generator: Logging, reference: Any, count: int) -> None:
    """Tokens and logits are the CPU's."""
    tokens = generator(PROMPT, count, eos=())
    want = expected_rows(reference, PROMPT, tokens)
    assert tokens == want.argmax(1).tolist() and len(tokens) == count
    assert difference(generator.rows[:count], want) < TOLERANCE


def test_128_tokens(reference: Any, smol: Any) -> None:
    """All of them the CPU's, and all their logits."""
    check(Logging(smol, 256, compile_prompts=False), reference, steps(128, 24))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_compiled_half(reference: Any, dtype: torch.dtype, bound: float) -> None:
    """Against float32 on the CPU."""
    generator = Logging(first_layers(reference, 4, dtype).to(DEVICE), 64, compile_prompts=False)
    tokens = generator(PROMPT, 12, eos=())
    assert difference(generator.rows[:12], expected_rows(first_layers(reference, 4), PROMPT, tokens)) < bound


@pytest.mark.parametrize("level", ["none", "pointwise", "full"])
def test_fusion_levels(reference: Any, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens at each of them."""
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=level))
    model = first_layers(reference, 2)
    check(Logging(copy.deepcopy(model).to(DEVICE), 64, compile_prompts=level == "full"), model, 16)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised(reference: Any, kind: Any) -> None:
    model = first_layers(reference, 2)
    quantize(model.model, kind)
    check(Logging(copy.deepcopy(model).to(DEVICE), 64, compile_prompts=kind == "int8"), dequantised(model), 16)


def dequantised(model: Any) -> Any:
    """A copy on the CPU with plain layers that compute the same."""
    model = copy.deepcopy(model).cpu()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (QuantisedLinear, QuantisedEmbedding)):
                setattr(parent, name, child.dequantise())
    return model
