"""Compiled models and optimizers in training, against the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import models
import pytest
import torch
from modelling import fresh, graphs, small_cnn  # noqa: F401
from torch import Tensor, nn


def same_training(
    model: nn.Module, batches: list[list[Tensor]], loss_of: Callable[[Any, list[Tensor]], Tensor], whole: bool
) -> None:
    """Trains a model on the CPU and its copy on the device; ``whole`` compiles the optimizer's step as well."""
    device = copy.deepcopy(model).to("webgpu")
    net = device if whole else torch.compile(device, backend="webgpu")
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (model, device)]

    def step(net: Any, optimizer: Any, batch: list[Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    on_device: Any = torch.compile(step, backend="webgpu") if whole else step
    for batch in batches:
        expected = step(model, optimizers[0], batch)
        got = on_device(net, optimizers[1], [t.to("webgpu") for t in batch])
        assert got.item() == pytest.approx(expected.item(), rel=1e-4)
    for (name, expected), got in zip(model.state_dict().items(), device.state_dict().values(), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4, msg=name)
    graphs()


@pytest.mark.parametrize("whole", [False, True], ids=["model", "step"])
def test_transformer_trains(whole: bool) -> None:
    torch.manual_seed(0)
    batches = [[torch.randint(1, models.VOCABULARY, (2, 9))] for _ in range(4)]

    def loss(net: Any, batch: list[Tensor]) -> Tensor:
        found: Tensor = net(input_ids=batch[0], labels=batch[0], use_cache=False).loss
        return found

    same_training(models.causal("qwen2-4-2").train(), batches, loss, whole)


def test_cnn_trains() -> None:
    torch.manual_seed(0)
    batches = [[torch.randn(4, 3, 33, 33), torch.randint(0, 10, (4,))] for _ in range(4)]
    same_training(small_cnn().train(), batches, lambda net, b: nn.functional.cross_entropy(net(b[0]), b[1]), False)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop], ids=lambda m: m.__name__)
def test_optimizer_steps_compile(make: Any) -> None:
    torch.manual_seed(0)
    on_cpu = [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3))]
    on_device = [nn.Parameter(p.detach().to("webgpu")) for p in on_cpu]
    optimizers = make(on_cpu, lr=0.1), make(on_device, lr=0.1)
    step = torch.compile(optimizers[1].step, backend="webgpu")
    for _ in range(4):
        for p, q in zip(on_cpu, on_device, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.to("webgpu")
        optimizers[0].step()
        step()
    for p, q in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=1e-4, atol=1e-5)
    assert len(graphs()[-1].plans) == 1
