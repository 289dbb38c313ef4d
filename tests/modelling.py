"""What tests of whole compiled models share: tiny models with inputs, and the graphs that they became."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import models
import pytest
import torch
from torch import Tensor, nn

from torch_webgpu.bench.vision_models import MBConv, SameConv2d
from torch_webgpu.compiler import backend
from torch_webgpu.compiler.executor import CompiledGraph


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    backend.compiled.clear()
    yield
    torch._dynamo.reset()


def graphs(count: int | None = None) -> list[CompiledGraph]:
    """The graphs compiled in this test; each ran as plans, whole."""
    found = backend.compiled
    assert found
    assert count is None or len(found) == count
    for graph in found:
        assert not graph.degraded, f"{graph.name} ran in pieces or op by op"
        assert graph.plans
    return found


def dispatches() -> list[int]:
    """Launches of each graph's newest plan."""
    return [len(graph.plans[-1].dispatches) for graph in graphs()]


def first(output: Any) -> Tensor:
    """The tensor of interest of a Hugging Face output."""
    for name in ("logits", "last_hidden_state"):
        if hasattr(output, name):
            found: Tensor = getattr(output, name)
            return found
    assert isinstance(output, Tensor)
    return output


def move(values: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {
        k: v.to("webgpu", dtype if v.is_floating_point() else v.dtype) if isinstance(v, Tensor) else v
        for k, v in values.items()
    }


def close(got: Tensor, expected: Tensor, tolerance: float) -> None:
    assert got.shape == expected.shape
    error = (got.cpu().float() - expected).abs().max() / expected.abs().max()
    assert error <= tolerance, f"relative error {error:.2e}"


def small_cnn() -> nn.Module:
    """Convolutions dense and depthwise, odd padding, a residual, batch norms with statistics of their own."""
    torch.manual_seed(1)
    net = nn.Sequential(
        SameConv2d(3, 8, 3, 2),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        MBConv(8, 8, 3, 1, 6),
        MBConv(8, 12, 5, 2, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
    )
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            for t in (m.running_mean, m.bias):
                assert t is not None
                t.data.uniform_(-0.3, 0.3)
            for t in (m.running_var, m.weight):
                assert t is not None
                t.data.uniform_(0.5, 1.5)
    return net.eval()


def case(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny model and its inputs."""
    torch.manual_seed(0)
    ids = torch.randint(1, models.VOCABULARY, (2, 11))
    if name == "cnn":
        return small_cnn(), {"input": torch.randn(2, 3, 33, 33)}
    if name in models.CAUSAL:
        return models.causal(name), {"input_ids": ids, "use_cache": False}
    if name.startswith("bert"):
        mask = torch.ones_like(ids)
        mask[1, 7:] = 0
        return models.encoder(name), {"input_ids": ids, "attention_mask": mask}
    return models.encoder(name), {"pixel_values": torch.randn(2, 3, 56, 56)}
