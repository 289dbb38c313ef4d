"""Random graphs, compiled, against eager PyTorch on the CPU: results, mutated inputs, and what shares memory with what.

A run takes few examples, always the same. Thousands of fresh ones, at all three levels:
``pytest tests/test_compiler_properties.py --hypothesis-profile=thorough`` (``--hypothesis-seed=N`` for others).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from graph_ops import COMPUTE, WRITES, draw_graph
from graphs import DEVICE, Builder, Drawn
from hypothesis import given, note
from hypothesis import strategies as st

from torch_webgpu.compiler import backend

LEVELS = ("none", "pointwise", "full")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fusion level, for the whole test."""
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=request.param))
    return str(request.param)


def compare(drawn: Drawn, got: list[torch.Tensor], bases: list[torch.Tensor], when: str) -> None:
    """Results and the inputs' storages against the reference."""
    for what, have, want in (("result", got, drawn.results), ("storage", bases, drawn.after)):
        for i, (x, y) in enumerate(zip(have, want, strict=True)):
            assert x.device.type == DEVICE and x.dtype == y.dtype and x.shape == y.shape, (when, what, i, x, y)
            error = drawn.error_of(y)
            torch.testing.assert_close(
                x.detach().cpu(), y.detach(), rtol=0.0, atol=error, msg=lambda m, w=what, i=i: f"{w} {i} {when}: {m}"
            )


def write_results(results: list[torch.Tensor]) -> None:
    """Changes every result in turn, so that whatever shares memory with it shows."""
    for i, t in enumerate(results):
        if not t.numel() or any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride(), strict=True)):
            continue
        if t.dtype is torch.bool:
            t.logical_not_()
        elif t._is_view() or i % 2 == 0:
            t.neg_() if t.dtype is not torch.uint8 else t.bitwise_not_()


@given(st.data())
def test_a_compiled_graph_is_the_eager_one(level: str, data: Any) -> None:
    builder = Builder(lambda options: data.draw(st.sampled_from(options)))
    drawn = draw_graph(builder, (*COMPUTE, *WRITES), 12)
    note(f"{drawn.module.graph}\n{drawn.layouts}\n{drawn.bases}")
    compiled = None
    for call in ("first", "second"):
        bases, inputs = drawn.inputs()
        if compiled is None:
            compiled = backend.webgpu(drawn.module, inputs)
        with torch.no_grad():
            got = list(compiled(*inputs))
        compare(drawn, got, bases, f"of the {call} call")
    write_results(drawn.results)
    write_results(got)
    compare(drawn, got, bases, "after the results were written")
