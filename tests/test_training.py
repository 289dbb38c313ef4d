"""Training a small transformer and a CNN, step by step beside the CPU; checkpoints, clipping, schedules, autocast."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import models
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from modelling import fresh, graphs, small_cnn  # noqa: F401
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_webgpu

STEPS = 100
Make = Callable[[], nn.Module]


class Block(nn.Module):
    """A layer of a transformer with both kinds of norms; float32 [batch, length, 16] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.qkv, self.out = nn.LayerNorm(16), nn.RMSNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


def transformer() -> nn.Module:
    return nn.Sequential(nn.Embedding(17, 16), Block(), nn.Linear(16, 17))


def cnn() -> nn.Module:
    first = (nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(6, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))


def batches(make: Make, count: int = STEPS) -> Iterable[tuple[Tensor, Tensor]]:
    """Sequences that count in threes, to be continued, or noisy pictures with a bright stripe, to be found."""
    g = torch.Generator().manual_seed(1)
    for _ in range(count):
        if make is transformer:
            line = (torch.randint(0, 17, (4, 1), generator=g) + torch.arange(9) * 3) % 17
            yield line[:, :-1], line[:, 1:].flatten()
        else:
            where = torch.randint(0, 4, (6,), generator=g)
            stripes = torch.arange(100).view(10, 10) // 25 == where.view(-1, 1, 1)
            yield stripes[:, None] + 0.5 * torch.randn(6, 1, 10, 10, generator=g), where


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "SGD, tensor by tensor": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, foreach=False),
    "Adam": functools.partial(torch.optim.Adam, lr=0.003),
    "Adam, tensor by tensor": functools.partial(torch.optim.Adam, lr=0.003, amsgrad=True, foreach=False),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.003),
    "AdamW, tensor by tensor": functools.partial(torch.optim.AdamW, lr=0.003, weight_decay=0.1, foreach=False),
}


def losses(make: Make, optimizer: str, device: str, compiled: bool = False) -> Tensor:
    """The loss of every step, on the CPU."""
    torch.manual_seed(0)
    net = make().to(device)
    step = OPTIMIZERS[optimizer](net.parameters())
    forward = torch.compile(net, backend="webgpu") if compiled else net
    found = []
    for x, y in batches(make):
        loss = F.cross_entropy(forward(x.to(device)).flatten(0, -2), y.to(device))
        step.zero_grad()
        loss.backward()
        step.step()
        found.append(loss.detach())
    return torch.stack(found).cpu()


@pytest.fixture(autouse=True)
def all_on_the_device(request: pytest.FixtureRequest) -> Any:
    """No op of a test falls back to the CPU, but those of fused optimizers."""
    before = torch_webgpu.fallbacks()
    yield
    assert (torch_webgpu.fallbacks() == before) == ("fused" not in request.node.name)


@pytest.mark.parametrize(
    ("make", "optimizer"), [(transformer, "SGD"), (transformer, "AdamW"), *((cnn, name) for name in OPTIMIZERS)]
)
def test_losses_of_a_hundred_steps(make: Make, optimizer: str) -> None:
    want, got = losses(make, optimizer, "cpu"), losses(make, optimizer, "webgpu")
    torch.testing.assert_close(got, want, rtol=0, atol=1e-3)
    assert want[-5:].mean() < 0.1 * want[0]


@pytest.mark.parametrize(
    ("make", "optimizer"), [(transformer, "AdamW"), (cnn, "SGD")], ids=["transformer, AdamW", "cnn, SGD"]
)
def test_losses_of_a_hundred_compiled_steps(make: Make, optimizer: str) -> None:
    want, got = losses(make, optimizer, "cpu"), losses(make, optimizer, "webgpu", compiled=True)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-3)
    graphs(2)  # forward and backward, each a plan


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_fused_optimizers_step_on_the_cpu(make: Any) -> None:
    """They have no kernels of their own; their ops fall back, which is said once, and give the same numbers."""
    here = [nn.Parameter(torch.linspace(-1, 1, n)) for n in (3, 7)]
    there = [nn.Parameter(p.detach().to("webgpu")) for p in here]
    steps = [make(parameters, lr=0.1, fused=True) for parameters in (here, there)]
    for i in range(3):
        for p, q in zip(here, there, strict=True):
            p.grad = (p.detach() * (i + 1)).sin()
            q.grad = p.grad.to("webgpu")
        for step in steps:
            step.step()
    for p, q in zip(here, there, strict=True):
        torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------------------------- backward of whole models


def backward_inputs(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model of a family and its inputs."""
    g = torch.Generator().manual_seed(2)
    if name == "efficientnet":
        return small_cnn(), {"x": torch.randn(2, 3, 32, 32, generator=g)}
    tokens = torch.randint(1, models.VOCABULARY, (2, 7), generator=g)
    if name in models.CAUSAL:
        return models.causal(name), {"input_ids": tokens}
    if name.startswith("bert"):
        mask = torch.ones(2, 7, dtype=torch.int64)
        mask[1, 4:] = 0
        return models.encoder(name), {"input_ids": tokens, "attention_mask": mask}
    return models.encoder(name), {"pixel_values": torch.randn(2, 3, 56, 56, generator=g)}


@pytest.mark.parametrize(
    "name", ["qwen2-4-2", "llama-3-1", "gpt2-2", "bert-4", "vit-4", "dinov2-4", "dinov2-2-swiglu", "efficientnet"]
)
def test_gradients_of_whole_models(name: str) -> None:
    here, inputs = backward_inputs(name)
    for module in here.modules():  # other random numbers here and there
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    here.train()
    there = copy.deepcopy(here).to("webgpu")
    for net, device in ((here, "cpu"), (there, "webgpu")):
        output = (
            net(*(t.to(device) for t in inputs.values()))
            if "x" in inputs
            else net(**{k: v.to(device) for k, v in inputs.items()})
        )
        result = output if isinstance(output, Tensor) else output[0]
        result.float().log_softmax(-1).square().mean().backward()
    for (parameter, want), got in zip(here.named_parameters(), there.parameters(), strict=True):
        assert (want.grad is None) == (got.grad is None), parameter
        if want.grad is not None and got.grad is not None:
            scale = float(want.grad.abs().max())
            torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-3, atol=1e-3 * scale + 1e-6, msg=parameter)


# ---------------------------------------------------------------------------------------------------- what belongs to it


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_have_the_same_gradients(reentrant: bool) -> None:
    """The forward pass that is repeated in the backward pass draws the same random numbers."""
    net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.GELU(), nn.Linear(16, 3)).to("webgpu")
    x = torch.randn(5, 6, device="webgpu", requires_grad=True)
    found = []
    for whole in (True, False):
        torch.manual_seed(3)
        net.zero_grad()
        x.grad = None
        out = net(x) if whole else checkpoint(net, x, use_reentrant=reentrant)
        assert isinstance(out, Tensor)
        out.square().sum().backward()
        found.append([p.grad.cpu() for p in (x, *net.parameters()) if p.grad is not None])
    assert len(found[0]) == 5
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_are_clipped(norm: float, foreach: bool) -> None:
    here = [nn.Parameter(torch.zeros(n)) for n in ((3, 4), (5,), ())]
    there = [nn.Parameter(p.detach().to("webgpu")) for p in here]
    for p, q in zip(here, there, strict=True):
        p.grad = torch.randn(p.shape)
        q.grad = p.grad.to("webgpu")
    want, got = (nn.utils.clip_grad_norm_(ps, 0.7, norm, foreach=foreach) for ps in (here, there))
    torch.testing.assert_close(got.cpu(), want)
    for p, q in zip(here, there, strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(q.grad.cpu(), p.grad)
    nn.utils.clip_grad_value_(there, 0.1)
    assert all(float(q.grad.abs().max()) <= 0.1 + 1e-7 for q in there if q.grad is not None)


@pytest.mark.parametrize("schedule", ["cosine", "cycle", "plateau", "warm-up"])
def test_schedules_of_the_learning_rate(schedule: str) -> None:
    def run(device: str) -> list[float]:
        torch.manual_seed(0)
        net = nn.Linear(4, 3).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5)
        each = torch.optim.lr_scheduler
        steps: Any = {
            "cosine": lambda: each.CosineAnnealingLR(optimizer, 10),
            "cycle": lambda: each.OneCycleLR(optimizer, 0.3, total_steps=12),
            "plateau": lambda: each.ReduceLROnPlateau(optimizer, patience=1, threshold=0.5),
            "warm-up": lambda: each.SequentialLR(
                optimizer, [each.LinearLR(optimizer, 0.1, total_iters=4), each.ExponentialLR(optimizer, 0.8)], [4]
            ),
        }[schedule]()
        g, found = torch.Generator().manual_seed(4), []
        for _ in range(12):
            x, y = torch.randn(8, 4, generator=g), torch.randint(0, 3, (8,), generator=g)
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.step(*((loss.detach(),) if schedule == "plateau" else ()))
            found += [loss.item(), float(optimizer.param_groups[0]["lr"])]
        return found

    want = run("cpu")
    assert len({round(x, 6) for x in want[1::2]}) > 2
    assert run("webgpu") == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_trains(dtype: torch.dtype) -> None:
    """Autocast and a GradScaler reach the loss that float32 reaches, and a step whose gradients overflow is left out."""
    torch.manual_seed(0)
    net: Any = transformer().to("webgpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.005)
    scaler = torch.amp.GradScaler("webgpu", enabled=dtype is torch.float16, init_scale=2.0**10)
    found = []
    for i, (x, y) in enumerate(batches(transformer, 60)):
        with torch.autocast("webgpu", dtype):
            assert net[2](torch.zeros(1, 16, device="webgpu")).dtype is dtype
            loss = F.cross_entropy(net(x.to("webgpu")).flatten(0, -2).float(), y.to("webgpu"))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if i == 30 and scaler.is_enabled():
            net[2].bias.grad[0] = float("inf")
            before, scale = net[2].weight.detach().cpu(), scaler.get_scale()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if i == 30 and scaler.is_enabled():
            assert torch.equal(net[2].weight.detach().cpu(), before) and scaler.get_scale() == scale / 2
        found.append(loss.item())
        assert all(p.dtype is torch.float32 and (p.grad is None or p.grad.dtype is torch.float32) for p in net.parameters())
    assert sum(found[-5:]) / 5 < 0.1 * found[0]
