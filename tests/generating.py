"""What tests of generation share: small models on both devices, prompts, and what transformers generates."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import models
import pytest
import torch
from torch import Tensor

import torch_webgpu
from torch_webgpu.compiler import backend
from torch_webgpu.llm import Generator

DEVICE = "webgpu"


@pytest.fixture(autouse=True)
def no_fallbacks() -> Iterator[None]:
    """Nothing here runs on the CPU for want of a kernel, and no plan falls apart."""
    before, graphs = torch_webgpu.fallbacks(), len(backend.compiled)
    yield
    assert torch_webgpu.fallbacks() == before
    assert not any(graph.degraded for graph in backend.compiled[graphs:])


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers generates, op by op, on the model's device."""
    ids = torch.tensor([prompt], device=model.device)
    new = model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    return new[0, len(prompt) :].tolist()


def prompt_of(size: int, seed: int = 0) -> list[int]:
    return torch.randint(1, models.VOCABULARY, (size,), generator=torch.Generator().manual_seed(seed)).tolist()


@functools.cache
def small(name: str = "llama-3-1") -> tuple[Any, Any]:
    """A small model on the CPU and on the device."""
    model = models.causal(name)
    return model, copy.deepcopy(model).to(DEVICE)


@functools.cache
def small_generator(length: int = 64) -> Generator:
    return Generator(small()[1], length)


class Logging(Generator):
    """Keeps the logits of every position in ``rows``."""

    def __init__(self, model: Any, length: int, **options: Any) -> None:
        super().__init__(model, length, **options)
        self.rows = torch.zeros(length, model.config.vocab_size, device=DEVICE)

    def _choose(self, logits: Tensor) -> Tensor:
        self.rows.index_copy_(0, self._count, logits[:, -1].float())
        return super()._choose(logits)


def difference(got: Tensor, want: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    assert got.shape == want.shape and bool(got.isfinite().all())
    return float((got.cpu().double() - want.double()).abs().max() / want.double().abs().max())


@torch.no_grad()
def expected_rows(model: Any, prompt: list[int], tokens: list[int]) -> Tensor:
    """The CPU's logits wherever a token was chosen. Where each row's largest is the token, greedy tokens are equal."""
    ids = torch.tensor([prompt + tokens[:-1]])
    return model(ids, logits_to_keep=len(tokens)).logits[0].float()
