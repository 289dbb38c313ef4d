"""Combining scatters, and ops over sorts and scatters that count (compared with the CPU)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_webgpu

DTYPES = (torch.float32, torch.float16, torch.int32, torch.uint8, torch.int64)


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Small values, many of them equal."""
    x = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(seed))
    return (x / 2 + 0.25).to(dtype) if dtype.is_floating_point else x.to(dtype)


def agree(call: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 1e-5) -> None:
    """The same results, shapes and dtypes on both devices."""
    got, wanted = call(*[t.to("webgpu") for t in inputs]), call(*inputs)
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for a, b in pairs:
        assert a.device.type == "webgpu"
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_reduce(dtype: torch.dtype) -> None:
    x, source = numbers(dtype, 4, 5), numbers(dtype, 7, 5, seed=1)
    index = torch.randint(0, 4, (7, 5), generator=torch.Generator().manual_seed(2))
    for reduce, include in itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)):
        agree(
            lambda a, i, s, r=reduce, n=include: a.scatter_reduce(0, i, s, r, include_self=n),
            x,
            index,
            source,
            tolerance=2e-3,
        )
    agree(lambda a, i, s: a.clone().scatter_reduce_(0, i[:, :3], s, "amax"), x, index, source)
    agree(lambda a, i, s: a.scatter(0, i, s, reduce="multiply"), x, index, source, tolerance=2e-3)
    agree(lambda a, i: a.scatter(0, i, 2, reduce="add"), x, index)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.int32))
def test_index_reduce(dtype: torch.dtype) -> None:
    x, source = numbers(dtype, 3, 4, 5), numbers(dtype, 3, 6, 5, seed=1)
    index = torch.tensor([3, 0, 3, 3, 1, 0])
    for reduce, include in itertools.product(("prod", "mean", "amax", "amin"), (True, False)):
        agree(
            lambda a, i, s, r=reduce, n=include: a.index_reduce(1, i, s, r, include_self=n), x, index, source, tolerance=2e-3
        )
    agree(lambda a, i, s: a.clone().index_reduce_(1, i, s, "amin"), x, index, source)


def test_combining_scatters_and_nan_gradients_and_errors() -> None:
    x = torch.tensor([1.0, float("nan"), 3.0, -0.5])
    agree(lambda a, i: torch.zeros_like(a).scatter_reduce(0, i, a, "amax"), x, torch.tensor([0, 1, 1, 2]))

    def gradient(a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        leaf = a.detach().requires_grad_()
        (torch.ones_like(a).scatter_reduce(0, i, leaf * leaf, "amax") * 2).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    agree(gradient, torch.tensor([1.5, 2.0, -3.0, 0.1]), torch.tensor([0, 0, 2, 2]))
    on_device = torch.zeros(3, device="webgpu")
    with pytest.raises(RuntimeError, match="out of bounds"):
        on_device.scatter_reduce(0, torch.tensor([5], device="webgpu"), torch.ones(1, device="webgpu"), "prod").cpu()
    with pytest.raises(RuntimeError, match="reduce"):
        on_device.scatter_reduce(0, torch.tensor([0], device="webgpu"), torch.ones(1, device="webgpu"), "median")


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64, torch.uint8, torch.bool))
def test_unique(dtype: torch.dtype) -> None:
    x = numbers(dtype, 6, 7)
    agree(lambda t: torch.unique(t, return_inverse=True, return_counts=True), x)
    agree(lambda t: torch.unique(t), x[:0])
    agree(lambda t: torch.unique_consecutive(t, return_inverse=True, return_counts=True), x.sort(1).values)
    agree(lambda t: torch.unique_consecutive(t, dim=0), x)


def test_unique_keeps_every_nan() -> None:
    agree(torch.unique, torch.tensor([2.0, float("nan"), 1.0, float("nan"), 2.0]))


def test_counts() -> None:
    x = torch.tensor([3, 1, 1, 0, 6], dtype=torch.int32)
    agree(torch.bincount, x)
    agree(lambda t: torch.bincount(t, minlength=10), x.long())
    agree(lambda t, w: torch.bincount(t, w), x, torch.rand(5))
    agree(lambda t: torch.bincount(t, minlength=2), x[:0])
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    agree(lambda t: torch.histc(t, 7), values)
    agree(lambda t: torch.histc(t, 10, -1, 1), torch.tensor([-1.0, 1.0, 0.0, 5.0, float("nan"), -0.99]))
    agree(lambda t: torch.histc(t, 4), torch.ones(3))
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([1, -1], device="webgpu"))
    with pytest.raises(RuntimeError, match="finite"):
        torch.histc(torch.tensor([1.0, float("inf")], device="webgpu"))


def test_mode_and_nanmedian() -> None:
    x = numbers(torch.int64, 5, 9, 3)
    agree(lambda t: torch.mode(t, 1), x)
    agree(lambda t: torch.mode(t, -1, keepdim=True), x.float())
    y = torch.tensor([[1.0, float("nan"), 3.0, 2.0], [float("nan"), 7.0, float("nan"), 5.0], [4.0, 3.0, 2.0, 1.0]])
    agree(lambda t: torch.nanmedian(t, 1), y)
    agree(lambda t: torch.nanmedian(t, 0, keepdim=True).values, y)
    agree(torch.nanmedian, y)
    agree(torch.nanmedian, torch.full((3,), float("nan")))


def test_cdist() -> None:
    a, b = torch.randn(2, 1, 5, 4), torch.randn(3, 6, 4)
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        agree(lambda s, t, p=p: torch.cdist(s, t, p), a, b)
    agree(lambda s, t: torch.cdist(s, t), torch.randn(40, 8), torch.randn(30, 8), tolerance=1e-4)

    def gradient(s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        leaf = s.detach().requires_grad_()
        torch.cdist(leaf, t).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    agree(gradient, torch.randn(5, 4), torch.randn(6, 4))


def test_small_linear_algebra_runs_on_the_cpu_by_choice() -> None:
    g = torch.Generator().manual_seed(0)
    a = torch.randn(4, 4, generator=g)
    spd = a @ a.T + 4 * torch.eye(4)
    before = sum(torch_webgpu.fallbacks().values())
    agree(torch.linalg.inv, spd, tolerance=1e-4)
    agree(torch.linalg.solve, spd, torch.randn(4, 2, generator=g), tolerance=1e-4)
    agree(torch.linalg.cholesky, spd, tolerance=1e-4)
    agree(lambda t: torch.linalg.qr(t)[1], spd, tolerance=1e-4)
    agree(torch.linalg.det, spd, tolerance=1e-3)
    agree(torch.linalg.eigvalsh, spd, tolerance=1e-3)
    assert sum(torch_webgpu.fallbacks().values()) > before
