"""Compiled forward and backward passes, running statistics and optimisers, against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from compiling import DEVICE, FLOATS, at_every_level, check, level, noise, same  # noqa: F401
from torch import nn

# ---------------------------------------------------------------------------------------------------- batch norm


@pytest.mark.parametrize(
    ("make", "shape"), ((nn.BatchNorm1d, (16, 8)), (nn.BatchNorm2d, (16, 8, 4, 4)), (nn.BatchNorm3d, (4, 8, 2, 2, 3)))
)
@pytest.mark.parametrize("momentum", (0.1, None))
def test_batch_norm_statistics_after_training_steps(make: Any, shape: tuple[int, ...], momentum: float | None) -> None:
    here, there = make(8, momentum=momentum), make(8, momentum=momentum).to(DEVICE)
    step = torch.compile(there, backend="webgpu")
    for seed in range(4):
        x = noise(*shape, seed=seed)
        same(step(x.to(DEVICE)), here(x), 1e-5)
    for name, want in here.named_buffers():
        torch.testing.assert_close(there.get_buffer(name).cpu(), want, rtol=1e-5, atol=1e-5)
    here.eval()
    there.eval()
    x = noise(*shape, seed=9)
    same(step(x.to(DEVICE)), here(x), 1e-5)


@at_every_level
def test_batch_norm_trains() -> None:
    here = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    there = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    there.load_state_dict(here.state_dict())
    there.to(DEVICE)
    step = torch.compile(there, backend="webgpu")
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (here, there)]
    for seed in range(3):
        x, y = noise(6, 3, 6, 6, seed=seed), torch.arange(6) % 5
        for model, optimiser, device in ((here, optimisers[0], "cpu"), (step, optimisers[1], DEVICE)):
            optimiser.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimiser.step()
    for name, want in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), want, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------- devices and gradients


def test_results_are_on_the_device() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.view(1, 3) + 1, torch.arange(3, device=x.device), torch.zeros_like(x), x.new_ones(2), x.sum(), x.argmax()

    check(f, torch.ones(3))


@at_every_level
@pytest.mark.parametrize("dtype", FLOATS)
def test_backward_of_a_linear_layer(dtype: torch.dtype) -> None:
    layer = nn.Linear(3, 2).to(DEVICE, dtype)
    x = torch.ones(4, 3, device=DEVICE, dtype=dtype, requires_grad=True)
    torch.compile(lambda t: layer(t).relu() if t.dim() == 1 else layer(t), backend="webgpu")(x).sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None and x.grad is not None
    same([layer.weight.grad, layer.bias.grad], [torch.full((2, 3), 4.0, dtype=dtype), torch.full((2,), 4.0, dtype=dtype)])
    torch.testing.assert_close(
        x.grad.cpu().float(), layer.weight.detach().cpu().float().sum(0).expand(4, 3), rtol=1e-2, atol=1e-2
    )


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up = nn.RMSNorm(8), nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.down, self.head, self.layer = nn.Linear(16, 8), nn.Linear(8, 4), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.head(F.gelu(self.layer(x)))  # type: ignore[no-any-return]


@at_every_level
@pytest.mark.parametrize("optimiser", (torch.optim.SGD, torch.optim.AdamW))
def test_training_equals_the_cpu(optimiser: Any) -> None:
    torch.manual_seed(0)
    here, there = Mlp(), Mlp()
    there.load_state_dict(here.state_dict())
    there.to(DEVICE)
    compiled = torch.compile(there, backend="webgpu")
    steps = [optimiser(m.parameters(), lr=0.05) for m in (here, there)]
    losses: list[list[float]] = [[], []]
    for seed in range(6):
        x, y = noise(5, 8, seed=seed), torch.arange(5) % 4
        runs: tuple[tuple[Any, str], ...] = ((here, "cpu"), (compiled, DEVICE))
        for i, (model, device) in enumerate(runs):
            steps[i].zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            steps[i].step()
            losses[i].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for name, want in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), want, rtol=1e-3, atol=1e-3)


@at_every_level
def test_a_compiled_training_step_with_its_loss() -> None:
    """Forward, loss and an update without an optimiser, in place on the parameters."""
    w = {d: noise(4, 3).to(d) for d in ("cpu", DEVICE)}

    def step(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = x @ w - y
        w.sub_(x.t() @ error * 0.1)
        return (error * error).mean()

    compiled = torch.compile(step, backend="webgpu")
    for seed in range(5):
        x, y = noise(6, 4, seed=seed), noise(6, 3, seed=seed + 50)
        same(compiled(w[DEVICE], x.to(DEVICE), y.to(DEVICE)), step(w["cpu"], x, y), 1e-4)
    same(w[DEVICE], w["cpu"], 1e-4)
