"""The tiled matrix product against float64: layouts, tails, packed dtypes, split sums, fused arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from torch_webgpu import runtime
from torch_webgpu.kernels.gemm import gemm
from torch_webgpu.kernels.program import IDENTITY, Program, Step
from torch_webgpu.recipe import Graph, Tensor
from torch_webgpu.registry import lower

DEVICE = "webgpu"
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {F32: 1e-4, F16: 2e-3, BF16: 1.6e-2}
# relu(product + x0) * x1
RELU = Program(
    ("f", "f", "f"),
    (
        Step("({0} + {1})", (0, 1), ("f", "f"), "f"),
        Step("max({0}, 0.0)", (3,), ("f",), "f"),
        Step("({0} * {1})", (4, 2), ("f", "f"), "f"),
    ),
)
_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define(
    "test_gemm(Tensor a, Tensor b, Tensor(a!) out, Tensor[] extras, Tensor? c, float alpha, float beta) -> Tensor(a!)"
)


@lower("webgpu::test_gemm")
def _lowered(graph: Graph, a: Tensor, b: Tensor, out: Tensor, extras: Any, c: Any, alpha: Any, beta: Any) -> Tensor:
    gemm(graph, a, b, out, program=RELU if extras else IDENTITY, extras=extras, c=c, alpha=alpha, beta=beta)
    return out


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU adapters have simpler shaders, which every other test of a product covers."""
    device = runtime.device()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, kind="discrete"))


def noise(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def stored(t: torch.Tensor, layout: str) -> torch.Tensor:
    """The matrix on the device, rows (``n``), columns (``t``) or nothing (``s``) contiguous."""
    if layout == "n":
        return t.to(DEVICE)
    if layout == "t":
        return t.transpose(-1, -2).contiguous().to(DEVICE).transpose(-1, -2)
    base = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 1), float("nan"), dtype=t.dtype)
    base[..., 1::2] = t
    return base.to(DEVICE)[..., 1::2]


def check(m: int, n: int, k: int, layouts: str, dtype: torch.dtype, batch: int = 1, out: torch.dtype | None = None) -> None:
    a, b = noise(batch, m, k, dtype=dtype), noise(batch, k, n, dtype=dtype, seed=1)
    got = torch.full((batch, m, n), 7.0, dtype=out or dtype, device=DEVICE)
    torch.ops.webgpu.test_gemm(stored(a, layouts[0]), stored(b, layouts[1]), got, [], None, 1.0, 0.0)
    tolerance = TOLERANCE[out or dtype]
    torch.testing.assert_close(got.cpu().double(), a.double() @ b.double(), rtol=tolerance, atol=tolerance * k**0.5)


@pytest.mark.parametrize("dtype", (F32, F16))
@pytest.mark.parametrize("layouts", ("nt", "nn", "tn", "ss"))
def test_layouts(layouts: str, dtype: torch.dtype) -> None:
    check(72, 88, 40, layouts, dtype)  # multiples of every vector, no multiple of a tile


@pytest.mark.parametrize(("m", "n", "k"), ((1, 1, 1), (65, 129, 17), (33, 32, 16), (5, 131, 33), (127, 3, 101)))
def test_odd_sizes(m: int, n: int, k: int) -> None:
    check(m, n, k, "nt", F32)
    check(m, n, k, "nn", F32, batch=2)


@pytest.mark.parametrize("dtype", (F16, BF16))
def test_packed(dtype: torch.dtype) -> None:
    check(33, 70, 72, "nt", dtype, batch=3)
    check(33, 71, 73, "nn", dtype)
    check(33, 70, 72, "nt", dtype, out=F32)


def test_batches_are_broadcast() -> None:
    a, b = noise(1, 40, 24), noise(3, 24, 36, seed=1)
    got = torch.empty(3, 40, 36, device=DEVICE)
    torch.ops.webgpu.test_gemm(a.to(DEVICE).expand(3, 40, 24), b.to(DEVICE), got, [], None, 1.0, 0.0)
    torch.testing.assert_close(got.cpu().double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("split", (False, True))
@pytest.mark.parametrize("dtype", (F32, F16))
def test_fused_arithmetic(dtype: torch.dtype, split: bool) -> None:
    m, n, k = (33, 66, 260) if split else (34, 66, 72)
    a, b, c = noise(m, k, dtype=dtype), noise(k, n, dtype=dtype, seed=1), noise(n, dtype=dtype, seed=2)
    bias, gate = noise(m, 1, seed=3), noise(m, n, dtype=dtype, seed=4)
    got = gate.to(DEVICE)  # the result replaces an operand in place
    torch.ops.webgpu.test_gemm(stored(a, "n"), stored(b, "t"), got, [bias.to(DEVICE), got], c.to(DEVICE), 0.5, 2.0)
    want = (a.double() @ b.double() * 0.5 + 2.0 * c.double() + bias.double()).relu() * gate.double()
    torch.testing.assert_close(got.cpu().double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 8)


@pytest.mark.parametrize(("m", "n", "k"), ((6, 130, 1000), (32, 64, 128), (70, 70, 211)))
def test_split_sums(m: int, n: int, k: int) -> None:
    check(m, n, k, "nt", F32, batch=2)


@pytest.mark.parametrize(
    ("m", "n", "k", "layouts", "dtype"),
    ((70, 67, 33, "nn", F32), (31, 130, 48, "nt", F16), (15, 132, 30, "nt", F32), (15, 132, 30, "nn", F32)),
)
def test_tiles(m: int, n: int, k: int, layouts: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_webgpu.kernels.gemm.FEW_RESULTS", 0)
    check(m, n, k, layouts, dtype, batch=2)


def test_large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_webgpu.kernels.gemm.MANY_LARGE", 1)
    check(129, 132, 36, "nt", F32)
    check(136, 136, 40, "tn", F16)


def test_beyond_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runtime.device().limits, "maxStorageBufferBindingSize", 8192)
    check(50, 90, 28, "nt", F32, batch=2)
    with pytest.raises(RuntimeError, match="exceeds the largest binding"):
        check(2, 2, 3001, "nt", F32)


def test_wrong_shapes() -> None:
    with pytest.raises(RuntimeError, match="does not give"):
        torch.ops.webgpu.test_gemm(*(torch.empty(3, 4, device=DEVICE) for _ in range(3)), [], None, 1.0, 0.0)
