"""Attention over caches, token by token, against attention over the whole text: eager, and at each level of fusion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from torch_webgpu.compiler import backend

DEVICE = "webgpu"


def whole(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """In float64 by the definition; a row whose mask is all False is 0."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.double().repeat_interleave(groups, 1), v.double().repeat_interleave(groups, 1)
    scores = (q.double() @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(~mask, -float("inf"))
    return (scores.softmax(3).nan_to_num(0.0) @ v).float()


def close(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape and bool(got.isfinite().all())
    assert float((got.cpu() - want).abs().max()) <= 1e-5


def heads(count: int, kv: int, dim: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(1, count, size, dim), torch.randn(1, kv, size, dim), torch.randn(1, kv, size, dim)


@pytest.fixture(params=["eager", "none", "pointwise", "full"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """What a function becomes at a level of fusion."""
    if request.param == "eager":
        return lambda f: f
    torch._dynamo.reset()
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=request.param))
    return lambda f: torch.compile(f, backend="webgpu", fullgraph=True)


@pytest.mark.parametrize(("count", "kv", "dim"), [(2, 2, 64), (6, 2, 48), (3, 1, 17)])
def test_growing_cache(count: int, kv: int, dim: int) -> None:
    """A cache grown by concatenation is the full causal attention."""
    q, k, v = heads(count, kv, dim, 70)
    want = whole(q, k, v, torch.ones(70, 70).tril().bool())
    keys = values = torch.zeros(1, kv, 0, dim, device=DEVICE)
    for t in range(70):
        keys = torch.cat([keys, k[:, :, t : t + 1].to(DEVICE)], 2)
        values = torch.cat([values, v[:, :, t : t + 1].to(DEVICE)], 2)
        close(sdpa(q[:, :, t : t + 1].to(DEVICE), keys, values, enable_gqa=count != kv), want[:, :, t : t + 1])


@pytest.mark.parametrize(("count", "kv", "dim", "length"), [(2, 2, 64, 16), (6, 2, 48, 37)])
def test_static_cache(compiled: Callable[[Any], Any], count: int, kv: int, dim: int, length: int) -> None:
    """Slots that are not written yet hold huge numbers and change nothing, neither values nor shapes."""
    q, k, v = heads(count, kv, dim, 9)
    want = whole(q, k, v, torch.ones(9, 9).tril().bool())
    keys, values = (torch.full((1, kv, length, dim), 1e4, device=DEVICE) for _ in range(2))
    slots = torch.arange(length, device=DEVICE)

    def step(query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Tensor:
        keys.index_copy_(2, position, key)
        values.index_copy_(2, position, value)
        mask = (slots <= position)[None, None, None]
        return sdpa(query, keys, values, attn_mask=mask, enable_gqa=count != kv)

    run = compiled(step)
    for t in range(9):
        one = [x[:, :, t : t + 1].to(DEVICE) for x in (q, k, v)]
        close(run(*one, torch.tensor([t], device=DEVICE)), want[:, :, t : t + 1])


@pytest.mark.parametrize("pads", [1, 3])
def test_padding_on_the_left(compiled: Callable[[Any], Any], pads: int) -> None:
    """Rows of padding, which nothing may look at and which look at nothing, are 0; the others do not notice."""
    real, _, _ = heads(2, 2, 64, 4)
    want = whole(real, real, real, torch.ones(4, 4).tril().bool())
    padded = torch.cat([torch.randn(1, 2, pads, 64), real], 2).to(DEVICE)
    mask = torch.ones(4 + pads, 4 + pads).tril().bool()
    mask[:, :pads] = False
    out = compiled(lambda x, m: sdpa(x, x, x, attn_mask=m))(padded, mask.to(DEVICE))
    close(out[:, :, pads:], want)
    close(out[:, :, :pads], torch.zeros(1, 2, pads, 64))
