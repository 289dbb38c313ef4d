"""Special functions against PyTorch's in float64, over their whole domains."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

SIGNED = torch.cat((torch.linspace(-30, 30, 241), torch.tensor([1e-30, -1e-3, 80.0, -80.0])))
POSITIVE = torch.cat((torch.logspace(-6, 1.9, 120), torch.linspace(0.05, 60, 120)))
UNARY: list[tuple[Callable[..., torch.Tensor], torch.Tensor, float]] = [
    (torch.special.i0, SIGNED, 2e-6),
    (torch.special.i0e, SIGNED, 1e-6),
    (torch.special.i1, SIGNED, 2e-6),
    (torch.special.i1e, SIGNED, 1e-6),
    (torch.special.modified_bessel_k0, POSITIVE, 4e-6),
    (torch.special.modified_bessel_k1, POSITIVE, 4e-6),
    (torch.special.scaled_modified_bessel_k0, POSITIVE, 2e-6),
    (torch.special.scaled_modified_bessel_k1, POSITIVE, 2e-6),
    (torch.special.bessel_j0, SIGNED, 1e-6),
    (torch.special.bessel_j1, SIGNED, 1e-6),
    (torch.special.bessel_y0, POSITIVE, 1e-6),
    (torch.special.bessel_y1, POSITIVE, 2e-6),
    (torch.special.spherical_bessel_j0, SIGNED, 1e-6),
    (torch.special.airy_ai, torch.linspace(-8, 8, 161), 8e-6),  # PyTorch's is off by 2.8e-6 near -2.1
    (torch.special.erfcx, torch.linspace(-5, 50, 200), 4e-6),
    (torch.special.log_ndtr, torch.linspace(-12, 5, 100), 4e-6),
    (torch.special.ndtri, torch.linspace(0.0001, 0.9999, 201), 2e-6),
    (lambda x: torch.polygamma(1, x), SIGNED[SIGNED.frac().abs() > 0.1], 4e-6),
    (lambda x: torch.polygamma(3, x), SIGNED[SIGNED.frac().abs() > 0.1], 1e-5),
]


@pytest.mark.parametrize(("function", "x", "bound"), UNARY, ids=[str(i) for i in range(len(UNARY))])
def test_unary(function: Callable[..., torch.Tensor], x: torch.Tensor, bound: float) -> None:
    want = function(x.double())
    torch.testing.assert_close(function(x.to("webgpu")).cpu().double(), want, rtol=bound, atol=bound / 2)


@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma(name: str) -> None:
    a, x = torch.meshgrid(
        torch.tensor([1e-3, 0.5, 1, 7.9, 8, 40, 300, 9000, 2e4]), torch.logspace(-4, 4.5, 80), indexing="ij"
    )
    near = a * (1 + torch.linspace(-3, 3, 80) / a.sqrt()).clamp(min=0)  # where the function changes
    for at in (x, near):
        got = getattr(torch, name)(a.to("webgpu"), at.to("webgpu")).cpu().double()
        torch.testing.assert_close(got, getattr(torch, name)(a.double(), at.double()), rtol=2e-5, atol=2e-6)


def test_hurwitz_zeta() -> None:
    s = torch.tensor([1.5, 2, 3, 4, 7.25])[:, None]
    q = torch.logspace(-2, 3, 60)
    got = torch.special.zeta(s.to("webgpu"), q.to("webgpu")).cpu().double()
    torch.testing.assert_close(got, torch.special.zeta(s.double(), q.double()), rtol=1e-5, atol=1e-7)
    below = torch.tensor([-0.5, -3.25, -17.75])
    got = torch.special.zeta(torch.tensor([2.0], device="webgpu"), below.to("webgpu")).cpu().double()
    torch.testing.assert_close(got, torch.special.zeta(torch.tensor([2.0]).double(), below.double()), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "name", ["chebyshev_polynomial_" + c for c in "tuvw"] + ["legendre_polynomial_p", "laguerre_polynomial_l"]
)
def test_polynomials(name: str) -> None:
    x, n = torch.meshgrid(torch.linspace(-1, 1, 41), torch.arange(-1.0, 13), indexing="ij")
    got = getattr(torch.special, name)(x.to("webgpu"), n.to("webgpu")).cpu().double()
    torch.testing.assert_close(got, getattr(torch.special, name)(x.double(), n.double()), rtol=2e-5, atol=2e-5)
    assert getattr(torch.special, name)(torch.ones(2, device="webgpu"), 3).shape == (2,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nextafter_and_frexp_by_bits(dtype: torch.dtype) -> None:
    f = torch.finfo(dtype)
    some = [0.0, -0.0, 1.0, -1.0, f.max, f.tiny, -f.tiny, f.tiny / 2, math.inf, -math.inf, 3.14, -1024.0]
    x = torch.tensor(some, dtype=torch.float64).to(dtype)
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(x, x, indexing="ij"))
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    got = torch.nextafter(a.to("webgpu"), b.to("webgpu")).cpu()
    assert torch.equal(got.view(bits), torch.nextafter(a, b).view(bits))
    finite = x[x.isfinite()]
    for have, want in zip(torch.frexp(finite.to("webgpu")), torch.frexp(finite), strict=True):
        assert have.dtype == want.dtype and torch.equal(have.cpu(), want)


def test_large_arguments_of_sine_and_cosine() -> None:
    x = torch.tensor([2e4, 51471.0, 1e6, 1e9, 3e20, 3.4028235e38, -7.7e33, 2.0**127], dtype=torch.float32)
    for f in (torch.sin, torch.cos):
        torch.testing.assert_close(f(x.to("webgpu")).cpu().double(), f(x.double()), rtol=1e-6, atol=2e-7)


def test_logarithms_of_subnormals() -> None:
    x = torch.tensor([1.4e-45, 1e-40, 5.9e-39, 1.2e-38])
    for f in (torch.log, torch.log2, torch.log10, torch.lgamma):
        torch.testing.assert_close(f(x.to("webgpu")).cpu().double(), f(x.double()), rtol=1e-6, atol=0)
