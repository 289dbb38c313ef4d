"""Sorting, selection, scans and binary search against PyTorch on the CPU."""

from __future__ import annotations

import pytest
import torch
from cases import ALL as DTYPES

SIZES = (0, 1, 2, 31, 63, 64, 65, 255, 257, 1000, 4097)
DEVICE = "webgpu"


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, special: bool = True) -> torch.Tensor:
    """Values with many ties; floats also with NaN, infinities and zeros of both signs."""
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(shape, generator=g) * 20).round()
    if dtype.is_floating_point and special:
        flat = x.view(-1)
        for start, value in enumerate((float("nan"), float("inf"), -float("inf"), 0.0, -0.0)):
            flat[start::17] = value
    if dtype is torch.int64:
        return x.to(dtype) * (1 << 40) + torch.randint(0, 3, shape, generator=g)
    return (x.abs() if dtype is torch.uint8 else x).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equality where NaN equals NaN."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.isnan(), b.isnan())
        and bool(((a == b) | a.isnan()).all())
    )


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sort(dtype: torch.dtype, n: int) -> None:
    x = sample((2, n), dtype)
    y = x.to(DEVICE)
    for descending in (False, True):
        want = torch.sort(x, dim=1, descending=descending, stable=True)
        values, indices = torch.sort(y, dim=1, descending=descending, stable=True)
        assert torch.equal(indices.cpu(), want.indices)
        assert same(values.cpu(), want.values)


@pytest.mark.parametrize("dim", (0, 1, 2))
def test_sort_strided(dim: int) -> None:
    x = sample((5, 70, 6), torch.float16)
    y = x.to(DEVICE)
    for view in (lambda t: t.transpose(0, 2), lambda t: t[1:, ::3, 1::2], lambda t: t[:, :, :1].expand(5, 70, 3)):
        want = torch.sort(view(x), dim=dim, stable=True)
        got = torch.sort(view(y), dim=dim)
        assert torch.equal(got.indices.cpu(), want.indices)
        assert same(got.values.cpu(), want.values)


def test_sort_forms() -> None:
    x = sample((3, 40), torch.float32)
    y = x.to(DEVICE)
    assert torch.equal(torch.argsort(y, dim=0, stable=True).cpu(), torch.argsort(x, dim=0, stable=True))
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    torch.sort(y, descending=True, out=(values, indices))
    assert torch.equal(indices.cpu(), torch.sort(x, descending=True, stable=True).indices)
    scalar = torch.sort(torch.tensor(3.0, device=DEVICE))
    assert scalar.values.item() == 3.0 and scalar.indices.item() == 0
    with pytest.raises(IndexError):
        torch.sort(y, dim=2)


def test_sort_long() -> None:
    x = sample((30000,), torch.int64, special=False)
    want = torch.sort(x, stable=True)
    got = torch.sort(x.to(DEVICE), stable=True)
    assert torch.equal(got.indices.cpu(), want.indices)
    assert torch.equal(got.values.cpu(), want.values)


def check_topk(x: torch.Tensor, k: int, dim: int, largest: bool) -> None:
    """The values must be PyTorch's; the positions any distinct ones that hold them."""
    want = torch.topk(x, k, dim, largest).values
    values, indices = (t.cpu() for t in torch.topk(x.to(DEVICE), k, dim, largest))
    assert same(values, want)
    assert same(x.gather(dim, indices), values)
    ordered = indices.sort(dim).values
    assert k < 2 or bool((ordered.diff(dim=dim) > 0).all())


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("largest", (False, True))
def test_topk(n: int, largest: bool) -> None:
    x = sample((3, n), torch.float32)
    for k in sorted({0, min(1, n), min(50, n), min(513, n), n}):
        check_topk(x, k, 1, largest)


@pytest.mark.parametrize("dtype", DTYPES[1:-1])
def test_topk_dtypes(dtype: torch.dtype) -> None:
    check_topk(sample((2, 1500), dtype), 7, 1, True)
    check_topk(sample((90, 3), dtype), 5, 0, False)


def test_topk_vocabulary() -> None:
    x = torch.randn(1, 151936, generator=torch.Generator().manual_seed(1))
    want = torch.topk(x, 50)
    got = torch.topk(x.to(DEVICE), 50)
    assert torch.equal(got.indices.cpu(), want.indices)
    assert torch.equal(got.values.cpu(), want.values)


@pytest.mark.parametrize("k", (1, 5, 16, 17, 64, 100, 128, 129))
def test_topk_of_unlucky_rows(k: int) -> None:
    """All the best elements in few invocations' hands, all in one block, all equal, or hardly any besides -inf."""
    n = 20000
    x = torch.zeros(4, n)
    x[0, ::256] = torch.arange(1.0, 80.0)
    x[1, 4000 : 4000 + k] = torch.arange(1.0, k + 1)
    x[2] = -float("inf")
    x[2, 7::3000] = torch.arange(7.0)
    x[3, 1:] = torch.linspace(0, 1, n - 1)
    check_topk(x, k, 1, True)
    check_topk(x, k, 1, False)


def test_topk_errors() -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        torch.topk(torch.zeros(3, device=DEVICE), 4)


@pytest.mark.parametrize("n", (1, 2, 65, 1000, 1500))
def test_order_statistics(n: int) -> None:
    x = sample((3, n), torch.float32, special=n == 1000)
    y = x.to(DEVICE)
    for keepdim in (False, True):
        want = torch.median(x, 1, keepdim)
        got = torch.median(y, 1, keepdim)
        assert same(got.values.cpu(), want.values)
        assert got.indices.shape == want.indices.shape
    assert same(torch.median(y).cpu(), torch.median(x))
    k = (n + 2) // 3
    assert same(torch.kthvalue(y, k, 1).values.cpu(), torch.kthvalue(x, k, 1).values)


# ---------------------------------------------------------------------------------------------------- scans


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cumsum(dtype: torch.dtype, n: int) -> None:
    x = sample((2, n, 3), dtype, special=False)
    for dim in (0, 1, 2):
        want, got = torch.cumsum(x, dim), torch.cumsum(x.to(DEVICE), dim).cpu()
        assert got.dtype == want.dtype
        if dtype is torch.float32 or not dtype.is_floating_point:
            assert torch.equal(got, want)
        else:  # the CPU rounds its running sum to the dtype at every step
            exact = torch.cumsum(x.double(), dim)
            torch.testing.assert_close(got.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3)


def test_cumsum_strided() -> None:
    x = sample((9, 40, 7), torch.int32)
    y = x.to(DEVICE)
    for view in (lambda t: t.permute(2, 0, 1), lambda t: t[::2, 3::4], lambda t: t[:1].expand(9, 40, 7)):
        for dim in (0, 1, 2):
            assert torch.equal(torch.cumsum(view(y), dim).cpu(), torch.cumsum(view(x), dim))


def test_cumsum_of_ones() -> None:
    n = 1_000_000
    assert torch.equal(torch.ones(n, device=DEVICE).cumsum(0).cpu(), torch.arange(1, n + 1).float())


def test_cumsum_beyond_32_bits() -> None:
    x = torch.full((3000,), 2**31 - 1, dtype=torch.int32)
    assert torch.equal(x.to(DEVICE).cumsum(0).cpu(), x.cumsum(0))


def test_cumsum_forms() -> None:
    x = sample((4, 70), torch.int32)
    y = x.to(DEVICE)
    assert torch.equal(torch.cumsum(y, 1, dtype=torch.int32).cpu(), torch.cumsum(x, 1, dtype=torch.int32))
    assert torch.equal(torch.cumsum(y, 1, dtype=torch.float32).cpu(), torch.cumsum(x, 1, dtype=torch.float32))
    out = torch.empty(0, dtype=torch.int64, device=DEVICE)
    torch.cumsum(y, 0, out=out)
    assert torch.equal(out.cpu(), x.cumsum(0))
    assert torch.equal(y.clone().cumsum_(1).cpu(), x.clone().cumsum_(1))
    assert torch.tensor(2.0, device=DEVICE).cumsum(0).item() == 2.0


@pytest.mark.parametrize("n", (1, 65, 1000, 4097))
def test_cumprod(n: int) -> None:
    x = 1 + 0.01 * torch.randn(2, n, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(x.to(DEVICE).cumprod(1).cpu(), x.cumprod(1), rtol=1e-4, atol=1e-5)
    whole = sample((2, n), torch.int64)
    assert torch.equal(whole.to(DEVICE).cumprod(1).cpu(), whole.cumprod(1))


@pytest.mark.parametrize("n", (1, 65, 1000, 1500))
def test_logcumsumexp(n: int) -> None:
    x = 10 * torch.randn(3, n, generator=torch.Generator().manual_seed(0))
    x[0, 0] = -float("inf")
    torch.testing.assert_close(x.to(DEVICE).logcumsumexp(1).cpu(), x.logcumsumexp(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n", SIZES[1:-1])
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool))
def test_running_extrema(dtype: torch.dtype, n: int) -> None:
    x = sample((2, n, 2), dtype)
    for function in (torch.cummax, torch.cummin):
        for dim in (0, 1):
            want, got = function(x, dim), function(x.to(DEVICE), dim)
            assert torch.equal(got.indices.cpu(), want.indices)
            assert same(got.values.cpu(), want.values)


# ---------------------------------------------------------------------------------------------------- binary search


@pytest.mark.parametrize("n", (0, 1, 2, 65, 1000))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.int64, torch.uint8))
def test_searchsorted(dtype: torch.dtype, n: int) -> None:
    edges = sample((n,), dtype, special=False).sort().values
    rows = sample((3, n), dtype, special=False).sort(1).values
    x = sample((3, 50), dtype, seed=1)
    for right in (False, True):
        want = torch.searchsorted(rows, x, right=right)
        assert torch.equal(torch.searchsorted(rows.to(DEVICE), x.to(DEVICE), right=right).cpu(), want)
        want = torch.bucketize(x.t().contiguous(), edges, right=right, out_int32=True)
        got = torch.bucketize(x.to(DEVICE).t(), edges.to(DEVICE), right=right, out_int32=True)
        assert got.dtype == torch.int32 and torch.equal(got.cpu(), want)


def test_searchsorted_forms() -> None:
    edges, order = torch.tensor([1.0, 3.0, 3.0, 7.0]), torch.tensor([3, 1, 0, 2])
    shuffled = torch.empty(4)
    shuffled[order] = edges
    x = torch.tensor([[0.0, 3.0], [float("nan"), 8.0]])
    got = torch.searchsorted(shuffled.to(DEVICE), x.to(DEVICE), side="right", sorter=order.to(DEVICE))
    assert torch.equal(got.cpu(), torch.searchsorted(shuffled, x, side="right", sorter=order))
    assert torch.searchsorted(edges.to(DEVICE), 3.0).item() == 1
    assert torch.bucketize(3, edges.to(DEVICE), right=True).item() == 3
