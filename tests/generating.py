"""What tests of generation share: small models on both devices, prompts, and what transformers generates."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import models
import pytest
import torch

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
