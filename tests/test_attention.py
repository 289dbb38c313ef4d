"""Attention of prompts: tiles, tails, masks, layouts and limits, against the formula in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from torch_webgpu import runtime

DEVICE = "webgpu"
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {F32: 2e-5, F16: 2e-3, BF16: 1.6e-2}


def noise(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False
) -> torch.Tensor:
    """The formula; a row without keys is 0."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.double().repeat_interleave(repeat, 1), v.double().repeat_interleave(repeat, 1)
    scores = q.double() @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2]).tril().bool()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else (scores.float() + mask.float()).double()
        )
    return scores.softmax(-1).nan_to_num(0.0) @ v


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False) -> None:
    def put(t: torch.Tensor) -> torch.Tensor:  # heads beside each other, as projections leave them
        return t.transpose(1, 2).contiguous().to(DEVICE).transpose(1, 2)

    gqa = q.shape[1] != k.shape[1]
    bias = None if mask is None else mask.to(DEVICE)
    got = F.scaled_dot_product_attention(put(q), put(k), put(v), attn_mask=bias, is_causal=causal, enable_gqa=gqa)
    tolerance = TOLERANCE[q.dtype]
    torch.testing.assert_close(got.cpu().double(), expected(q, k, v, mask, causal), rtol=tolerance, atol=tolerance)


def operands(
    heads: int, groups: int, queries: int, keys: int, dim: int, dtype: torch.dtype = F32, batch: int = 1, value: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        noise(batch, heads, queries, dim, dtype=dtype),
        noise(batch, groups, keys, dim, dtype=dtype, seed=1),
        noise(batch, groups, keys, value or dim, dtype=dtype, seed=2),
    )


@pytest.mark.parametrize(("queries", "keys"), ((2, 70), (8, 8), (16, 33), (17, 17), (31, 64), (33, 31), (65, 97), (100, 40)))
def test_lengths(queries: int, keys: int) -> None:
    q, k, v = operands(2, 1, queries, keys, 64)
    check(q, k, v)
    check(q, k, v, causal=True)


@pytest.mark.parametrize(
    ("heads", "groups", "dim", "value", "dtype"),
    (
        (2, 2, 37, 37, F16),
        (7, 1, 80, 80, F32),
        (4, 2, 96, 64, F16),
        (2, 1, 128, 128, BF16),
        (8, 1, 256, 256, F32),
        (2, 1, 64, 150, F32),
        (1, 1, 1, 3, F32),
    ),
)
def test_heads(heads: int, groups: int, dim: int, value: int, dtype: torch.dtype) -> None:
    check(*operands(heads, groups, 35, 37, dim, dtype, batch=2, value=value), causal=True)


def test_many_queries_a_workgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_webgpu.ops.attention.ENOUGH", 1)
    check(*operands(4, 2, 101, 99, 64), causal=True)
    check(*operands(2, 1, 50, 60, 128, F16))


def _mask(kind: str, batch: int, heads: int, queries: int, keys: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    on = torch.rand(batch, heads, queries, keys, generator=generator) < 0.6
    on[..., 32:64] = False  # a tile without keys
    on[..., 3, :] = False  # a row without keys
    if kind == "bool":
        return on
    lowest = -torch.inf if kind == "inf" else torch.finfo(F32).min
    return torch.randn(on.shape, generator=generator).masked_fill(~on, lowest)


@pytest.mark.parametrize("kind", ("bool", "inf", "lowest"))
def test_masks(kind: str) -> None:
    q, k, v = operands(4, 2, 37, 75, 64, batch=2)
    check(q, k, v, _mask(kind, 2, 1, 37, 75))
    check(q, k, v, _mask(kind, 1, 4, 37, 75))


def test_mask_of_a_static_cache() -> None:
    q, k, v = operands(2, 1, 20, 130, 64)
    k[:, :, 20:] = v[:, :, 20:] = 1e4  # slots not written yet
    check(q, k, v, torch.ones(20, 130).tril().bool())


def test_within_small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = operands(4, 2, 34, 40, 64, batch=2)
    mask = torch.rand(2, 1, 34, 40, generator=torch.Generator().manual_seed(1)) < 0.5
    limits = runtime.device().limits
    monkeypatch.setitem(limits, "maxStorageBufferBindingSize", 4 * 40 * 256)
    check(q, k, v, mask)
    monkeypatch.setitem(limits, "maxStorageBufferBindingSize", 300 + 4 * 64 * 20)
    check(*operands(1, 1, 40, 20, 64), causal=True)
    with pytest.raises(RuntimeError, match="exceeds the largest storage binding"):
        check(*operands(1, 1, 9, 300, 64))
