"""Ops composed on the device: places of elements, runs of rows, grid sampling, distances, backward of pools and pads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import torch_webgpu

DEVICE = "webgpu"


@pytest.fixture(autouse=True)
def nothing_on_the_cpu() -> Any:
    before = torch_webgpu.fallbacks()
    yield
    assert torch_webgpu.fallbacks() == before


def same(f: Callable[..., Any], *tensors: torch.Tensor) -> None:
    want, got = f(*tensors), f(*(t.to(DEVICE) for t in tensors))
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert g.device.type == DEVICE
        torch.testing.assert_close(g.cpu(), w, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 0, 3), (3, 4, 5), (129, 3)])
def test_nonzero(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 2, shape).to(dtype)
    same(torch.nonzero, x)
    if shape:
        same(lambda t: torch.nonzero_static(t, size=5, fill_value=-7), x)


def test_nonzero_sees_subnormals_and_nan() -> None:
    same(torch.nonzero, torch.tensor([0.0, -0.0, 1e-45, float("nan"), float("inf")]))


def test_repeat_interleave() -> None:
    same(torch.repeat_interleave, torch.tensor([2, 0, 3, 1]))
    with pytest.raises(RuntimeError, match="negative"):
        torch.repeat_interleave(torch.tensor([1, -1], device=DEVICE))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_rows(dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 2, (6, 3, 2))
    for f in (torch.unique, torch.unique_consecutive):
        same(lambda t, f=f: f(t, return_inverse=True, return_counts=True, dim=dim), x)
    same(lambda t: torch.unique(t, dim=0), torch.empty(0, 3))
    with pytest.raises(RuntimeError, match="0 sized dimensions"):
        torch.unique(torch.empty(2, 0, device=DEVICE), dim=0)


def gradients(f: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    """Values and gradients, as on the CPU."""
    results = []
    for device in ("cpu", DEVICE):
        inputs = [t.to(device, copy=True).requires_grad_() for t in tensors]
        y = f(*inputs)
        weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(device)
        results.append([y, *torch.autograd.grad((y * weights).sum(), inputs)])
    for g, w in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    torch.manual_seed(0)
    for spatial in ((4, 5), (3, 4, 2)):
        if mode == "bicubic" and len(spatial) == 3:
            continue
        x, grid = torch.randn(2, 3, *spatial), torch.rand(2, *spatial, len(spatial)) * 3 - 1.5
        gradients(lambda a, b: F.grid_sample(a, b, mode=mode, padding_mode=padding, align_corners=align), x, grid)


def test_grid_sample_keeps_not_a_number_where_it_is() -> None:
    x = torch.ones(1, 1, 3, 3)
    x[..., 0, 0] = float("nan")
    same(lambda a, b: F.grid_sample(a, b, align_corners=False), x, torch.tensor([[[[2.0, 2.0], [0.5, 0.5], [-1.0, -1.0]]]]))


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 3), torch.randn(4, 3)
    gradients(lambda a, b: torch.cdist(a, b, p=p, compute_mode="donot_use_mm_for_euclid_dist"), x, y)
    gradients(lambda a: F.pdist(a, p=p), x)


POOLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (2, 3, 5, 7)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2, stride=1, padding=1), (1, 2, 4, 3, 4)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), (2, 3, 5, 4)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, (2, 3, 2), stride=2, padding=1, ceil_mode=True), (1, 2, 5, 6, 4)),
    "avg_pool3d inside": (lambda x: F.avg_pool3d(x, 3, stride=2, padding=1, count_include_pad=False), (2, 5, 6, 4)),
    "avg_pool3d divisor": (lambda x: F.avg_pool3d(x, 2, divisor_override=3), (1, 2, 4, 4, 5)),
    "replicate 1": (lambda x: F.pad(x, (2, 1), mode="replicate"), (2, 3, 4)),
    "replicate 2": (lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), (2, 3, 4, 5)),
    "replicate 2, cut": (lambda x: F.pad(x, (-1, 1, 2, -2), mode="replicate"), (2, 3, 4, 5)),
    "replicate 3": (lambda x: F.pad(x, (1, 1, 0, 2, 1, 0), mode="replicate"), (2, 3, 2, 4, 5)),
    "hardshrink": (lambda x: F.hardshrink(x, 0.4), (40,)),
    "softshrink": (lambda x: F.softshrink(x, 0.4), (40,)),
}


@pytest.mark.parametrize("name", POOLS)
def test_backward(name: str) -> None:
    torch.manual_seed(0)
    f, shape = POOLS[name]
    gradients(f, torch.randn(shape))


def test_embedding_renorm_and_rrelu() -> None:
    torch.manual_seed(0)
    weight, indices = torch.randn(6, 4) * 3, torch.tensor([[0, 2], [2, 5]])
    here, there = weight.clone(), weight.to(DEVICE)
    want = F.embedding(indices, here, max_norm=1.0, norm_type=2.5)
    got = F.embedding(indices.to(DEVICE), there, max_norm=1.0, norm_type=2.5)
    torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close(there.cpu(), here)
    x = torch.randn(1000, device=DEVICE)
    slopes = (F.rrelu(x, 0.2, 0.4, training=True) / x)[x < 0].cpu()
    assert 0.2 <= float(slopes.min()) < 0.25 and 0.35 < float(slopes.max()) <= 0.4001 and float(slopes.std()) > 0.04
    torch.testing.assert_close(F.rrelu(x, 0.2, 0.4), torch.where(x < 0, x * 0.3, x))
