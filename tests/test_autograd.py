"""Autograd on the device: hooks, custom functions, second derivatives, transforms, checkpoints, what it says of mistakes."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "webgpu"


def both(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The same leaf on the CPU and on the device."""
    host = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return host.clone().requires_grad_(), host.to(DEVICE).requires_grad_()


def test_second_derivatives() -> None:
    found = []
    for x in both(5):
        (first,) = torch.autograd.grad((x**3).sum() + x.sin().prod(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append((first, second))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu(), want, atol=1e-4, rtol=1e-4)


def test_hooks_run_in_order_and_may_change_gradients() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    seen: list[str] = []
    y = x * 2
    y.register_hook(lambda g: seen.append(f"y {g.device.type}"))
    x.register_hook(lambda g: g * 10)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(f"x {p.grad.tolist()}"))  # type: ignore[union-attr]
    (y * 3).sum().backward()
    assert seen == ["y webgpu", "x [60.0, 60.0, 60.0]"]
    layer = nn.Linear(3, 2).to(DEVICE)

    def note(module: nn.Module, given: Any, got: Any) -> None:
        seen.append(f"{given[0].shape} {got[0].shape}")

    layer.register_full_backward_hook(note)
    layer(x[None]).sum().backward()
    assert seen[-2] == "torch.Size([1, 3]) torch.Size([1, 2])"


class Doubled(torch.autograd.Function):
    """Says twice the truth about its slope."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * grad * x.exp()


def test_custom_functions() -> None:
    host, x = both(4)
    Doubled.apply(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), 2 * host.detach().exp())


def test_saved_tensors_that_were_written_are_noticed() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)


def test_anomalies_name_the_op() -> None:
    x = torch.tensor([-1.0], device=DEVICE, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="SqrtBackward0' returned nan"):
            x.sqrt().backward()


def test_function_transforms() -> None:
    host, x = (t.detach() for t in both(3, 4))

    def f(t: torch.Tensor) -> torch.Tensor:
        return (t.sin() * t).sum()

    for transform in (
        torch.func.grad(f),
        torch.func.vmap(f),
        torch.func.vmap(torch.func.grad(f)),
        lambda t: torch.func.jvp(f, (t,), (t.cos(),))[1],
        lambda t: torch.func.vjp(torch.sin, t)[1](t)[0],
        lambda t: torch.func.jacrev(torch.sin)(t[0]),
        lambda t: torch.func.hessian(f)(t[0]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(transform(x).cpu(), transform(host), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_draw_the_same_numbers_again(reentrant: bool) -> None:
    """The dropout that is computed again in the backward pass is the one of the forward pass."""
    torch.manual_seed(0)
    x = torch.ones(64, 8, device=DEVICE, requires_grad=True)
    drop = nn.Dropout(0.5)
    kept: Any = checkpoint(lambda t: drop(t) * 3, x, use_reentrant=reentrant)
    kept.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, kept.detach()) and 0 < int((x.grad == 0).sum()) < 512


def test_saved_tensors_on_the_cpu() -> None:
    _, x = both(16)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x.exp() * x).sum()
    y.backward()
    assert x.grad is not None
    want = x.detach().exp() * (1 + x.detach())
    torch.testing.assert_close(x.grad, want)


def test_modes_and_detached_views() -> None:
    x = torch.ones(4, device=DEVICE, requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        inside = x * 2
    assert inside.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (x * inside).sum().backward()
    view = x.detach()[1:3]
    view.zero_()
    assert x.tolist() == [1, 0, 0, 1] and not view.requires_grad


def test_leaves_are_copied_with_their_gradients_and_results_are_not() -> None:
    _, x = both(3)
    y = x * x
    y.sum().backward()
    twin = copy.deepcopy(x)
    assert x.grad is not None and twin.grad is not None and twin.requires_grad
    assert torch.equal(twin.grad, x.grad) and twin.grad is not x.grad
    with pytest.raises(RuntimeError, match="created explicitly by the user"):
        copy.deepcopy(y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_pytorchs_own_compilers(backend: str) -> None:
    """Dynamo, and AOTAutograd's two graphs, on this device's ops."""
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    ours = copy.deepcopy(host).to(DEVICE)
    x = torch.randn(5, 4)
    host(x).square().sum().backward()
    compiled = torch.compile(ours, backend=backend)
    compiled(x.to(DEVICE)).square().sum().backward()
    for p, q in zip(host.parameters(), ours.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(q.grad.cpu(), p.grad, atol=1e-4, rtol=1e-4)


def test_exported_programs() -> None:
    layer = nn.Linear(4, 2).to(DEVICE)
    x = torch.randn(3, 4, device=DEVICE)
    program = torch.export.export(layer, (x,))
    assert torch.equal(program.module()(x), layer(x))


def test_data_loaders() -> None:
    """``pin_memory`` has nothing to do on this device, and harms nothing; workers keep to the CPU."""
    data = torch.utils.data.TensorDataset(torch.arange(12.0), torch.arange(12))
    for workers in (0, 1):
        loader = torch.utils.data.DataLoader(data, batch_size=5, pin_memory=True, num_workers=workers)
        batches = [(x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)) for x, y in loader]
        assert torch.cat([x for x, _ in batches]).tolist() == list(range(12))
        assert torch.cat([y for _, y in batches]).sum().item() == 66
