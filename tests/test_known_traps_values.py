"""Values, indices and dtypes that broke other stacks, each widened to its kind. Expected values are arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from traps import DEVICE, FLOATS, INF, NAN, SIZES, put, same

from torch_webgpu import registry

# ---------------------------------------------------------------------------------------------------- extrema


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", (4, 65, 1000, 70000))
def test_extrema_and_nan(dtype: torch.dtype, n: int) -> None:
    x = torch.zeros(n).to(dtype)
    x[1], x[n - 1] = NAN, NAN
    y = x.to(DEVICE)
    assert y.argmax().item() == 1 and y.argmin().item() == 1
    assert all(math.isnan(t.item()) for t in (y.max(), y.min(), y.amax(), y.amin()))
    same(put([-INF] * n, dtype).argmax(), 0)
    same(put([INF] * n, dtype).argmin(), 0)
    same(put([-INF] * n, dtype).max(), -INF)


def test_extrema_of_extremes() -> None:
    same(put([-1e38, -3e38]).max(), -1e38)
    same(put([32768.0, 32767.0]).min(), 32767.0)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        assert put([low, low + 1], dtype).max().item() == low + 1
        assert put([high, high - 1], dtype).min().item() == high - 1
    for at in (0, 1, 75000, 151935):
        y = torch.zeros(151936)
        y[at] = 1
        assert y.to(DEVICE).argmax().item() == at
    assert torch.full((1000,), 2.0, device=DEVICE).argmax().item() == 0


def test_nan_passes_through() -> None:
    x, zero = put([NAN, -1.0, 2.0]), put([0.0, NAN, 0.0])
    same(x.relu(), [NAN, 0.0, 2.0])
    same(x.clamp(0, 1), [NAN, 0.0, 1.0])
    same(torch.maximum(x, zero), [NAN, NAN, 2.0])
    same(torch.fmax(x, zero), [0.0, -1.0, 2.0])
    same(F.max_pool1d(x[None, None], 3)[0, 0], [NAN])
    for function in (torch.sigmoid, torch.tanh, F.gelu, F.silu, F.elu, F.softplus, F.hardswish, torch.erf, torch.exp):
        assert math.isnan(function(x)[0].item())
    same(F.gelu(put([-100.0, 100.0, 1e30])), [0.0, 100.0, 1e30], 1e-6)
    same(torch.tanh(put([-1e4, 1e4, 100.0])), [-1.0, 1.0, 1.0])
    same(F.silu(put([-200.0, 200.0])), [0.0, 200.0], 1e-6)


# ---------------------------------------------------------------------------------------------------- bad indices


@pytest.mark.parametrize("bad", (10, -11, 2**40, -(2**40)))
def test_bad_indices_raise(bad: int) -> None:
    w, i = torch.arange(20.0).reshape(10, 2).to(DEVICE), put([bad])
    for call in (
        lambda: F.embedding(i, w).cpu(),
        lambda: w[i].cpu(),
        lambda: w.gather(0, i[None].expand(1, 2)).cpu(),
        lambda: w.index_select(0, i).cpu(),
        lambda: w.scatter(0, i[None], 1.0).cpu(),
        lambda: w.index_add(0, i, w[:1]).cpu(),
        lambda: w.clone().index_put_((i,), w[:1]).cpu(),
    ):
        with pytest.raises((IndexError, RuntimeError)):
            call()
    same(w[put([-1])], [[18.0, 19.0]])
    with pytest.raises((IndexError, RuntimeError)):
        F.embedding(put([-1]), w).cpu()


# ---------------------------------------------------------------------------------------------------- dtypes


def test_narrow_integers() -> None:
    same(put([0, 127, 128, 200, 255], torch.uint8).float(), [0.0, 127.0, 128.0, 200.0, 255.0])
    same(put([-128, -1, 127], torch.int8).float(), [-128.0, -1.0, 127.0])
    same(put([-1.9, -0.5, 0.5, 1.9]).int(), [-1, 0, 0, 1])
    same(put([0.0, -0.0, 0.3, NAN, INF]).bool(), [False, False, True, True, True])
    same(put([300, -1], torch.int32).to(torch.uint8), [44, 255])
    same(put([200], torch.uint8) + put([100], torch.uint8), [44])
    same(put([127], torch.int8) + 1, [-128])


@pytest.mark.parametrize("n", SIZES)
def test_bools(n: int) -> None:
    b = torch.ones(n, dtype=torch.bool, device=DEVICE)
    assert b.all().item() and not (~b).any().item() and b.sum().item() == n and b.sum().dtype is torch.int64
    b[-1] = False
    assert not b.all().item() and b.sum().item() == n - 1 and (~b).any().item()


def test_subnormals_are_not_zero() -> None:
    x = torch.tensor([1, 0x7FFFFF, -0x7FFFFFFF], dtype=torch.int32)
    y = x.view(torch.float32).to(DEVICE)
    assert y.any().item() and y.bool().all().item() and (y != 0).all().item()
    assert torch.equal(y.cpu().view(torch.int32), x)


def test_wide_integers() -> None:
    x = put([2**40, -(2**40), 2**32 - 1, -(2**31), 2**62])
    same(x + 1, torch.tensor([2**40 + 1, -(2**40) + 1, 2**32, -(2**31) + 1, 2**62 + 1]))
    same(x > 2**31, [True, False, True, False, True])
    same(x * 3 // 3, torch.tensor([2**40, -(2**40), 2**32 - 1, -(2**31), (2**62 * 3 - 2**64) // 3]))
    same(put([10**12, 1]).cumsum(0), torch.tensor([10**12, 10**12 + 1]))
    same(torch.arange(2**33, 2**33 + 3, device=DEVICE), torch.tensor([2**33, 2**33 + 1, 2**33 + 2]))
    assert (put([2**24 + 1]) == 2**24 + 1).item() and not (put([2**53 + 1]) == 2**53).item()
    for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8):
        high = torch.iinfo(dtype).max
        assert put([high] * 3, dtype).sum().item() == 3 * high
        assert put([high] * 3, dtype).cumsum(0)[-1].item() == 3 * high
    same(put([2**31 - 1], torch.int32) + 1, [-(2**31)])


def test_quotients_and_roots_are_exact() -> None:
    """WGSL allows a division to be 2.5 units in the last place off: then 6 / 3 truncates to 1."""
    whole = torch.arange(1.0, 601.0)
    x, y = (whole[:, None] * whole).to(DEVICE), whole.to(DEVICE)
    expected = whole[:, None].expand(600, 600)
    for result in (
        x / y,
        torch.div(x, y, rounding_mode="trunc"),
        torch.div(x, y, rounding_mode="floor"),
        torch.addcdiv(torch.zeros_like(x), x, y),
    ):
        assert torch.equal(result.cpu(), expected)
    random = torch.rand(20000, generator=torch.Generator().manual_seed(0)) * 100 + 1e-3
    z = random.to(DEVICE)
    for function in (torch.reciprocal, torch.sqrt, lambda t: t**-1, lambda t: t / 7, lambda t: t**0.5):
        assert (function(z).cpu() != function(random.double()).float()).sum() <= 1
    assert torch.equal((y * y).sqrt().cpu(), whole)
    assert torch.equal((y * y).rsqrt().cpu(), 1 / whole)
    constant = torch.full((7, 2, 9, 11), 2.0, device=DEVICE)
    for mean in (
        constant.mean(),
        constant.mean((0, 2)),
        F.avg_pool2d(constant, 3),
        F.avg_pool2d(constant, 3, padding=1, count_include_pad=False),
        constant.new_zeros(3).scatter_reduce(
            0, torch.zeros(6, dtype=torch.int64, device=DEVICE), constant[0, 0, 0, :6], "mean", include_self=False
        )[0],
    ):
        assert torch.equal(mean.cpu(), torch.full(mean.shape, 2.0))
    assert torch.equal(F.layer_norm(constant, (11,)).cpu(), torch.zeros(constant.shape))
    assert torch.linalg.vector_norm(put([3.0, 4.0])).item() == 5.0


@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.int16, torch.float32, torch.float16))
def test_division_of_signed_numbers(dtype: torch.dtype) -> None:
    a, b = put([-7, 7, -7, 7, -1, -768, -769], dtype), put([2, -2, -2, 2, 768, 768, 768], dtype)
    same(a // b, [-4, -4, 3, 3, -1, -1, -2])
    same(torch.remainder(a, b), [1, -1, -1, 1, 767, 0, 767])
    same(torch.fmod(a, b), [-1, 1, -1, 1, -1, 0, -1])
    same(torch.div(a, b, rounding_mode="trunc"), [-3, -3, 3, 3, 0, -1, -1])
    if not dtype.is_floating_point:
        same(put([-8, -1, 8], dtype) >> 1, [-4, -1, 4])
        low = torch.iinfo(dtype).min
        same(put([low], dtype).abs(), [low])
        for call in (lambda x, y: x // y, torch.remainder, torch.fmod):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                call(put([1, 2], dtype), put([0, 1], dtype)).cpu()


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities(dtype: torch.dtype) -> None:
    x = put([2.0, -3.0, 0.0, INF], dtype)
    same(x * INF, [INF, -INF, NAN, INF])
    same(x + -INF, [-INF, -INF, -INF, NAN])
    same(torch.full((2,), -INF, device=DEVICE, dtype=dtype), [-INF, -INF])
    same(put([0.0, 1.0], dtype).log(), [-INF, 0.0])
    same(1 / put([0.0, -0.0], dtype), [INF, -INF])
    masked = x.masked_fill(x < 0, -INF)[:3].softmax(0)
    assert masked[1].item() == 0
    same(put([-INF, -INF], dtype).softmax(0), [NAN, NAN])
    same(F.pad(put([1.0], dtype), (1, 0), value=-INF), [-INF, 1.0])


def test_half_precision_accumulates_in_single() -> None:
    half = torch.float16
    for n, value, want in ((3, 40000.0, 40000.0), (100000, 1.0, 1.0)):
        assert torch.full((n,), value, dtype=half, device=DEVICE).mean().item() == want
    ones = torch.ones(100000, dtype=half, device=DEVICE)
    assert ones.sum().item() == INF and ones[:4096].sum().item() == 4096
    assert torch.cat([put([2048.0], half), ones[:64]]).sum().item() == 2112
    assert torch.full((3,), 40000.0, dtype=half, device=DEVICE).var().item() == 0
    assert torch.full((4,), 200.0, dtype=half, device=DEVICE).norm().item() == 400
    row = torch.full((1, 64), 60.0, dtype=half, device=DEVICE)
    assert (row @ row.t()).item() == INF
    assert (row / 60 @ row.t() / 60).item() == 64


# ---------------------------------------------------------------------------------------------------- scatter, masks


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.int32, torch.int16, torch.uint8))
def test_accumulation_of_duplicates(dtype: torch.dtype) -> None:
    zeros = torch.zeros(3, dtype=dtype, device=DEVICE)
    same(zeros.index_put((put([0, 0]),), put(1, dtype), accumulate=True), [2, 0, 0])
    same(zeros.index_put((put([2, 2, 2, 0]),), put([1, 2, 3, 4], dtype), accumulate=True), [4, 0, 6])
    same(zeros.scatter_add(0, put([1, 1, 1, 2]), put([1, 1, 1, 5], dtype)), [0, 3, 5])
    same(zeros.index_add(0, put([1, 1]), put([3, 4], dtype)), [0, 7, 0])
    if dtype in (torch.float32, torch.int64, torch.int32):
        added = torch.zeros(1, dtype=dtype, device=DEVICE)
        same(added.index_add_(0, put([0] * 5000), torch.ones(5000, dtype=dtype, device=DEVICE)), [5000])


def test_masks_and_bools() -> None:
    x = put([[1, 2], [3, 4]])
    same(torch.ops.aten.index_put(x, [put([True, False]), None], put(0)), [[0, 0], [3, 4]])
    both = torch.zeros(2, dtype=torch.bool, device=DEVICE)
    same(both.index_put_((put([0, 0]),), put([True, True]), accumulate=True), [True, False])
    a = torch.arange(4.0).reshape(2, 2).to(DEVICE)
    same(a.masked_fill(put([[True, False]]), 9.0), [[9.0, 1.0], [9.0, 3.0]])
    same(a.masked_fill(put([[True], [False]]), -INF), [[-INF, -INF], [2.0, 3.0]])
    same(torch.where(put([[True], [False]]), a[:1], put([[7.0], [8.0]])), [[0.0, 1.0], [8.0, 8.0]])
    mixed = torch.where(put([True, False]), put([1, 2]), 0.5)
    assert mixed.dtype is torch.float32
    same(mixed, [1.0, 0.5])


def test_a_lowering_never_hides_a_composite_ops_gradient() -> None:
    """A kernel put on an op that PyTorch differentiates through its parts would cut the graph of gradients."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    hidden = [
        name
        for name in registry.lowered()
        if "::" not in name
        and has(f"aten::{name}", "CompositeImplicitAutograd")
        and not has(f"aten::{name}", "Autograd")
        and not name.startswith(("__", "isfinite"))  # integers and truth values have no gradients
    ]
    assert not hidden
    x = torch.tensor([1.5, -2.0], device="webgpu", requires_grad=True)
    (torch.square(x) + torch.true_divide(x, 4.0)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.25, -3.75]


@pytest.mark.parametrize(
    ("dtype", "number"), ((torch.uint8, -1), (torch.int8, 300), (torch.int8, 200), (torch.int16, 70000))
)
def test_numbers_outside_of_a_narrow_integer(dtype: torch.dtype, number: int) -> None:
    """Arithmetic and comparisons convert them first (255 == -1 in uint8); what stores them refuses."""
    host = torch.tensor([44, 1, 2, 3, 5, 100], dtype=dtype)
    host[0] = 255 if dtype is torch.uint8 else -1
    for f in (
        lambda t: t == number,
        lambda t: t < number,
        lambda t: t // number,
        lambda t: t % number,
        lambda t: torch.fmod(t, number),
        lambda t: torch.div(t, number, rounding_mode="trunc"),
        lambda t: t + number,
        lambda t: number - t,
        lambda t: t * number,
        lambda t: t == torch.tensor(number),
        lambda t: t <= torch.tensor(number, device=t.device),
    ):
        same(f(host.to(DEVICE)), f(host))
    for g in (
        lambda t: t.clamp(number, 3),
        lambda t: t.masked_fill(t == 1, number),
        lambda t: torch.where(t == 1, t, number),
        lambda t: torch.full_like(t, number),
        lambda t: t.clone().fill_(number),
    ):
        if dtype is torch.uint8:
            same(g(host.to(DEVICE)), g(host))
        else:
            with pytest.raises(RuntimeError, match="without overflow"):
                g(host.to(DEVICE))


@pytest.mark.parametrize("dtype", (torch.int64, torch.uint8, torch.bool))
@pytest.mark.parametrize("number", (0.5, 1.7))
def test_masked_fill_of_integers_with_floats(dtype: torch.dtype, number: float) -> None:
    host = torch.tensor([1, 0, 1]).to(dtype)
    mask = torch.tensor([True, True, False])
    same(host.to(DEVICE).masked_fill(mask.to(DEVICE), number), host.masked_fill(mask, number))
