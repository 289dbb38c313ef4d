"""Random graphs, compiled, against eager PyTorch on the CPU: results, mutated inputs, and what shares memory with what.

A run takes few examples, always the same. Thousands of fresh ones, at all three levels:
``pytest tests/test_compiler_properties.py tests/test_compiler_dynamic.py --hypothesis-profile=thorough``
(``--hypothesis-seed=N`` for others).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from graph_layers import LAYERS
from graph_ops import COMPUTE, DIFFERENTIABLE, WRITES, draw_graph
from graphs import DEVICE, Builder, Drawn
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_programs import check_aliases, compare, compile_graph

from torch_webgpu.compiler import backend

LEVELS = ("none", "pointwise", "full")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fusion level, for the whole test."""
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=request.param))
    return str(request.param)


@settings(max_examples=2 * settings().max_examples)
@given(st.data())
def test_a_compiled_graph_is_the_eager_one(level: str, data: Any) -> None:
    builder = Builder(lambda options: data.draw(st.sampled_from(options)))
    drawn = draw_graph(builder, (*COMPUTE, *LAYERS, *WRITES), 16)
    note(f"{drawn.module.graph}\n{drawn.layouts}\n{drawn.bases}")
    compiled = None
    for call in ("first", "second"):
        bases, inputs = drawn.inputs()
        if compiled is None:
            compiled = compile_graph(drawn, inputs)
        with torch.no_grad():
            got = list(compiled(*inputs))
        compare(drawn, got, bases, f"of the {call} call")
    check_aliases(drawn, got, bases)


@given(st.data())
def test_gradients_of_a_compiled_graph_are_the_eager_ones(level: str, data: Any) -> None:
    """Forward and backward pass; inputs that are views of one base get a gradient each."""
    builder = Builder(lambda options: data.draw(st.sampled_from(options)), dtypes=(torch.float32,))
    drawn = draw_graph(builder, DIFFERENTIABLE, 9)
    note(f"{drawn.module.graph}\n{drawn.layouts}\n{drawn.bases}")
    check_gradients(drawn)


def check_gradients(drawn: Drawn) -> None:
    """Gradients of all float inputs, for a weighted sum of the results."""

    def run(function: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
        results = [r for r in function(*inputs) if r.requires_grad]
        if results:
            sum((r * (i + 1)).sum() for i, r in enumerate(results)).backward()  # type: ignore[union-attr]
        return [x.grad for x in inputs]

    def leaves(device: str) -> list[torch.Tensor]:
        return [x.detach().requires_grad_(x.dtype.is_floating_point) for x in drawn.inputs(device)[1]]

    there = leaves(DEVICE)
    want = run(drawn.module, leaves("cpu"))
    got = run(compile_graph(drawn, there), there)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        assert (x is None) == (y is None), (i, x, y)
        if x is None or y is None:
            continue
        error = 1e-4 * max(1.0, float(y.abs().max()) if y.numel() else 0.0)
        assert torch.allclose(x.cpu(), y, rtol=1e-3, atol=error, equal_nan=True), f"gradient {i}: {x}, not {y}"
