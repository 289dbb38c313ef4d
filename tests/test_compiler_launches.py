"""How many launches a plan has, for the layers that models are made of, at every level of fusion."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from compiling import (
    CAUSAL,
    F16,
    FEW,
    GAIN,
    HEADS,
    LEVELS,
    NORMED,
    ROW,
    B,
    Function,
    Inputs,
    V,
    W,
    chunked,
    noise,
    repeated,
    rms,
    rope,
    run,
    swiglu,
    wide_rms,
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No guards of an earlier test."""
    torch._dynamo.reset()


# name: function, inputs, launches at none, pointwise, full
GRAPHS: dict[str, tuple[Function, Inputs, tuple[int, int, int]]] = {
    "rms_norm": (rms, (noise(2, 64), GAIN), (6, 3, 1)),
    "rms_norm half": (wide_rms, (noise(2, 64, dtype=F16), GAIN.half()), (8, 3, 1)),
    "rms_norm of torch": (lambda x, g: F.rms_norm(x, (64,), g, 1e-6), (noise(2, 64), GAIN), (1, 1, 1)),
    "layer_norm": (NORMED, (noise(2, 64), GAIN, noise(64, seed=1)), (1, 1, 1)),
    "rope": (rope, (noise(1, 2, 3, 16), noise(3, 16), noise(3, 16, seed=1)), (6, 3, 1)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS, (1, 1, 1)),
    "attention, mask": (F.scaled_dot_product_attention, (*HEADS, CAUSAL), (4, 2, 1)),
    "attention, groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k, 2), repeated(v, 2)),
        (HEADS[0], *FEW),
        (3, 3, 1),
    ),
    "attention, enable_gqa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (HEADS[0], *FEW),
        (1, 1, 1),
    ),
    "linear": (F.linear, (ROW, W), (1, 1, 1)),
    "linear, bias": (F.linear, (ROW, W, B), (1, 1, 1)),
    "linear, many rows, gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (noise(40, 64), W, B), (2, 2, 1)),
    "linear, bias, silu, product": (lambda x, w, b, y: F.silu(F.linear(x, w, b)) * y, (ROW, W, B, noise(1, 32)), (3, 2, 1)),
    "linear, residual": (lambda x, w, r: r + F.linear(x, w), (ROW, W, noise(1, 32)), (2, 2, 1)),
    "SwiGLU": (swiglu, (ROW, W, V), (4, 3, 1)),
    "SwiGLU, down, residual": (
        lambda r, x, w, v, d: r + F.linear(swiglu(x, w, v), d),
        (noise(1, 64, seed=2), ROW, W, V, noise(64, 32) / 8),
        (6, 5, 2),
    ),
    "GeGLU": (lambda x, w, v: F.gelu(F.linear(x, w)) * F.linear(x, v), (ROW, W, V), (4, 3, 1)),
    "GeGLU, tanh": (lambda x, w, v: F.gelu(F.linear(x, w), approximate="tanh") * F.linear(x, v), (ROW, W, V), (4, 3, 1)),
    "GeGLU of halves": (chunked, (ROW, torch.cat((W, V)), noise(64)), (3, 2, 2)),
    "rms_norm, linear": (lambda x, g, w: F.linear(rms(x, g), w), (ROW, GAIN, W), (7, 4, 1)),
    "rms_norm of torch, linear": (lambda x, g, w: F.linear(F.rms_norm(x, (64,), g, 1e-6), w), (ROW, GAIN, W), (2, 2, 1)),
    "rms_norm, SwiGLU": (lambda x, g, w, v: swiglu(rms(x, g), w, v), (ROW, GAIN, W, V), (10, 6, 1)),
    "residual, rms_norm, linear": (
        lambda x, y, g, w: (lambda h: (h, F.linear(rms(h, g), w)))(x + y),
        (ROW, noise(1, 64, seed=3), GAIN, W),
        (8, 5, 2),
    ),
    "layer_norm, linear, gelu": (
        lambda x, g, b, w, c: F.gelu(F.linear(NORMED(x, g, b), w, c)),
        (ROW, GAIN, noise(64, seed=1), W, B),
        (3, 3, 2),
    ),
    "embedding": (F.embedding, (torch.tensor([[1, 2, 5]]), noise(8, 16)), (1, 1, 1)),
    "argmax": (lambda x: x.argmax(-1), (noise(2, 300),), (1, 1, 1)),
    "head, argmax": (lambda x, w: F.linear(x, w)[:, -1].argmax(-1), (noise(1, 1, 64), noise(100, 64)), (2, 2, 2)),
    "softmax": (lambda x: x.softmax(-1), (noise(2, 64),), (1, 1, 1)),
    "chain": (lambda x, y: torch.tanh(x * 2 + y).relu() - 1, (noise(5, 7), noise(7)), (5, 1, 1)),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", GRAPHS)
def test_launches_of_a_plan(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs, expected = GRAPHS[name]
    tolerance = 4e-3 if any(x.dtype is F16 for x in inputs) else 2e-5
    dispatches = run(function, inputs, level, monkeypatch, tolerance)
    assert len(dispatches) == expected[LEVELS.index(level)], [d.name for d in dispatches]
