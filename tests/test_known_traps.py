"""Inputs that broke other accelerator stacks, each widened to its kind. Expected values are arithmetic."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import torch_webgpu  # noqa: F401 - registers the device
from torch_webgpu import registry

DEVICE = "webgpu"
NAN, INF = float("nan"), float("inf")
NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
OFFSETS = (*range(9), 31, 32, 63, 64, 65, 127)
SIZES = (1, 2, 3, 31, 63, 64, 65, 255, 256, 257, 1000, 4097)


def same(got: torch.Tensor, want: Any, tolerance: float = 0.0) -> None:
    """Equal values, NaN equal to NaN; lists and numbers stand for a tensor of the result's dtype."""
    have = got.detach().cpu()
    expected = want if isinstance(want, torch.Tensor) else torch.tensor(want, dtype=have.dtype)
    torch.testing.assert_close(have, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def put(values: object, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(DEVICE)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The formula in float64; a row without any key is 0."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.double().repeat_interleave(repeat, 1), v.double().repeat_interleave(repeat, 1)
    scores = q.double() @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -INF) if mask.dtype is torch.bool else scores + mask.double()
    return (scores.softmax(-1).nan_to_num(0.0) @ v).float()


# ---------------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("head", (8, 37, 64, 96, 128))
@pytest.mark.parametrize(("batch", "length"), ((1, 1), (2, 3), (5, 7)))
def test_attention_of_permuted_inputs(batch: int, length: int, head: int) -> None:
    q, k, v = (noise(batch, length, 3, head, seed=s).permute(0, 2, 1, 3) for s in range(3))
    x, y, z = (t.transpose(1, 2).to(DEVICE).transpose(1, 2) for t in (q, k, v))
    got = F.scaled_dot_product_attention(x, y, z)
    same(got, attention64(q, k, v), 1e-5)


@pytest.mark.parametrize("length", (2, 5, 33))
def test_attention_row_without_keys(length: int) -> None:
    q, k, v = (noise(1, 2, length, 16, seed=s) for s in range(3))
    mask = torch.ones(length, length).tril(-1).bool()  # the first row has none
    for m in (mask, torch.zeros(length, length).masked_fill(~mask, -INF)):
        got = F.scaled_dot_product_attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), attn_mask=m.to(DEVICE))
        assert got.cpu()[:, :, 0].eq(0).all()
        same(got, attention64(q, k, v, mask), 1e-5)
    lowest = torch.zeros(length, length).masked_fill(~mask, torch.finfo(torch.float32).min)
    got = F.scaled_dot_product_attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), attn_mask=lowest.to(DEVICE))
    same(got[:, :, 0], v.mean(2), 1e-5)  # a finite mask lowers all keys alike


@pytest.mark.parametrize("shape", ((1, 1, 8, 8), (2, 1, 8, 8), (1, 4, 8, 8), (2, 4, 1, 8), (8, 8), (1, 8)))
@pytest.mark.parametrize("kind", (torch.bool, torch.float32))
def test_attention_mask_is_broadcast(shape: tuple[int, ...], kind: torch.dtype) -> None:
    q = noise(2, 4, 8, 64)
    mask = noise(*shape, seed=1) > 0
    mask[..., 0] = True
    given = mask if kind is torch.bool else torch.zeros(shape).masked_fill(~mask, -INF)
    got = F.scaled_dot_product_attention(q.to(DEVICE), q.to(DEVICE), q.to(DEVICE), attn_mask=given.to(DEVICE))
    same(got, attention64(q, q, q, mask.expand(2, 4, 8, 8)), 1e-5)


@pytest.mark.parametrize(("heads", "groups", "keys"), ((4, 2, 33), (8, 1, 257), (32, 2, 1024)))
def test_attention_grouped_heads(heads: int, groups: int, keys: int) -> None:
    q, k, v = noise(1, heads, 1, 128), noise(1, groups, keys, 128, seed=1), noise(1, groups, keys, 128, seed=2)
    got = F.scaled_dot_product_attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), enable_gqa=True)
    same(got, attention64(q, k, v), 1e-4)


def test_attention_mask_and_causal() -> None:
    """Both are applied, or it raises; neither is dropped."""
    q, mask = noise(1, 2, 4, 64), noise(4, 4, seed=1)
    try:
        got = F.scaled_dot_product_attention(
            q.to(DEVICE), q.to(DEVICE), q.to(DEVICE), attn_mask=mask.to(DEVICE), is_causal=True
        ).cpu()
    except RuntimeError:
        return
    same(got, attention64(q, q, q, mask.masked_fill(~torch.ones(4, 4).tril().bool(), -INF)), 1e-5)


# ---------------------------------------------------------------------------------------------------- strides, products


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
@pytest.mark.parametrize("rows", (1, 2, 5, 33))
def test_linear_of_strided_operands(rows: int, dtype: torch.dtype) -> None:
    w, x = (noise(12, 8) / 4).to(dtype), (noise(rows, 8, seed=1) / 4).to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    want = (x.double() @ w[::2].double().T).to(dtype)
    same(F.linear(x.to(DEVICE), w.to(DEVICE)[::2]), want, tolerance)
    same(F.linear(x.to(DEVICE), w.T.contiguous().to(DEVICE).T[::2]), want, tolerance)
    same(F.linear(x.T.contiguous().to(DEVICE).T, w.to(DEVICE)[::2]), want, tolerance)
    line = (torch.arange(8.0) / 8).to(dtype)
    expanded = line.to(DEVICE).as_strided((rows, 3, 8), (0, 0, 1))
    same(F.linear(expanded, w.to(DEVICE)), (w.double() @ line.double()).to(dtype).expand(rows, 3, 12), tolerance)


def test_convolution_of_strided_operands() -> None:
    w, x = noise(3, 4, 3, 3, 3), noise(2, 8, 6, 6, seed=1)
    want = F.conv2d(x[:, ::2].double(), w[:, :, 1].double()).float()
    same(F.conv2d(x.to(DEVICE)[:, ::2], w.to(DEVICE)[:, :, 1]), want, 1e-4)


@pytest.mark.parametrize("m", (1, 2, 4, 33, 500))
@pytest.mark.parametrize(("k", "n"), ((1, 1), (17, 65), (104, 208), (440, 7), (896, 151), (64, 32)))
def test_product_sizes(m: int, k: int, n: int) -> None:
    a, b = noise(m, k), noise(k, n, seed=1)
    want = (a.double() @ b.double()).float()
    for x in (a.to(DEVICE), a.t().contiguous().to(DEVICE).t()):
        for y in (b.to(DEVICE), b.t().contiguous().to(DEVICE).t()):
            same(x @ y, want, 2e-4)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.int64))
def test_products_of_nothing(dtype: torch.dtype) -> None:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=DEVICE)

    bias = torch.arange(5).to(dtype)
    same(torch.addmm(bias.to(DEVICE), zeros(3, 0), zeros(0, 5)), bias.expand(3, 5))
    same(zeros(0, 9) @ zeros(9), torch.zeros(0, dtype=dtype))
    same(zeros(2, 0) @ zeros(0, 3), torch.zeros(2, 3, dtype=dtype))
    same(zeros(0).dot(zeros(0)), torch.tensor(0, dtype=dtype))
    if dtype.is_floating_point:
        same(
            torch.baddbmm(zeros(2, 2, 1) + 1, zeros(2, 2, 0), zeros(2, 0, 1), beta=0.5),
            torch.full((2, 2, 1), 0.5, dtype=dtype),
        )
        lost = torch.full((2, 2, 1), NAN, dtype=dtype, device=DEVICE)
        same(torch.baddbmm(lost, zeros(2, 2, 0), zeros(2, 0, 1), beta=0), torch.zeros(2, 2, 1, dtype=dtype))
        same(torch.baddbmm(lost, zeros(2, 2, 3), zeros(2, 3, 1), beta=0), torch.zeros(2, 2, 1, dtype=dtype))


# ---------------------------------------------------------------------------------------------------- empty


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.int32, torch.uint8))
def test_reductions_of_nothing(dtype: torch.dtype) -> None:
    e = torch.zeros(0, dtype=dtype, device=DEVICE)
    assert e.sum().item() == 0 and e.prod().item() == 1
    assert not e.any().item() and e.all().item()
    assert torch.nonzero(e).shape == (0, 1) and e[e > 0].shape == (0,)
    same(torch.zeros(2, 0, dtype=dtype, device=DEVICE).sum(1).to(dtype), torch.zeros(2, dtype=dtype))
    same(torch.cat([e, torch.ones(1, dtype=dtype, device=DEVICE)]), torch.ones(1, dtype=dtype))
    if dtype.is_floating_point:
        assert math.isnan(e.mean().item()) and math.isnan(e.var().item())
    for call in (e.argmax, e.argmin, e.amax, e.max, lambda: torch.zeros(2, 0, dtype=dtype, device=DEVICE).amax(1)):
        with pytest.raises((RuntimeError, IndexError)):
            call()


# ---------------------------------------------------------------------------------------------------- out=, in place, views


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int8, torch.uint8, torch.int64))
@pytest.mark.parametrize(
    ("rows", "columns"), ((slice(None, None, 2), slice(None, None, 2)), (slice(1, 6), slice(3, None, 3)))
)
def test_strided_out(dtype: torch.dtype, rows: slice, columns: slice) -> None:
    x = (torch.arange(72).reshape(8, 9) % 11).to(dtype)
    want = torch.full((8, 9), 5, dtype=dtype)
    got = want.to(DEVICE)
    want[rows, columns] = x[rows, columns] + x[rows, columns]
    y = x.to(DEVICE)[rows, columns]
    torch.add(y, y, out=got[rows, columns])
    same(got, want)


def test_in_place_on_transposed() -> None:
    a, b, c = (noise(2, 3, seed=s).abs() + 0.5 for s in range(3))
    x = a.to(DEVICE).t()
    x.addcdiv_(b.t().to(DEVICE), c.t().contiguous().to(DEVICE))
    same(x, (a + b / c).t(), 1e-5)
    z = torch.arange(-3.0, 3.0).reshape(2, 3)
    same(z.to(DEVICE).t().clamp_(min=0), z.clamp(min=0).t())
    p = z.to(DEVICE).t()
    same(p.masked_fill_(p < 0, 9.0), [[9.0, 0.0], [9.0, 1.0], [9.0, 2.0]])


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.int16, torch.int8))
def test_views_write_through(dtype: torch.dtype) -> None:
    x = torch.arange(6, dtype=dtype, device=DEVICE)
    view = x[1::2]
    view += 10
    same(x, [0, 11, 2, 13, 4, 15])
    x[2:4].zero_()
    same(x, [0, 11, 0, 0, 4, 15])
    y = torch.arange(4, dtype=dtype, device=DEVICE)
    y.view(2, 2).t().mul_(put([[1, 2], [3, 4]], dtype))
    same(y, [0, 3, 4, 12])


def test_every_launch_sees_its_scalar() -> None:
    z = torch.zeros(200, device=DEVICE)
    for i in range(200):
        z[i] = i
    same(z, torch.arange(200.0))
    same(torch.stack([torch.full((3,), float(i), device=DEVICE) * i for i in range(100)])[:, 0], torch.arange(100.0) ** 2)


@pytest.mark.parametrize("dtype", (*NARROW, torch.float32, torch.int64))
@pytest.mark.parametrize("step", (2, 3))
def test_copies_between_gappy_views(dtype: torch.dtype, step: int) -> None:
    line = (torch.arange(20) % 7).to(dtype)
    want = torch.ones(20).to(dtype)
    want[::step] = line[::step]
    host, device = torch.ones(20).to(dtype), torch.ones(20).to(dtype).to(DEVICE)
    host[::step].copy_(line.to(DEVICE)[::step])
    device[::step].copy_(line[::step])
    same(host, want)
    same(device, want)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("offset", range(5))
def test_narrow_types_spare_their_neighbours(dtype: torch.dtype, offset: int) -> None:
    line = (torch.arange(13) % 2).to(dtype)
    device = line.to(DEVICE)
    for n in (1, 2, 3, 5):
        part = slice(offset, offset + n)
        same(device[part], line[part])
        want, zeroed = torch.ones(13).to(dtype), torch.ones(13).to(dtype)
        want[part], zeroed[part] = line[part], 0
        host = torch.ones(13).to(dtype)
        host[part].copy_(device[part])
        same(host, want)
        for source in (line[part], device[part]):
            got = torch.ones(13).to(dtype).to(DEVICE)
            got[part] = source
            same(got, want)
        got = torch.ones(13).to(dtype).to(DEVICE)
        got[part].zero_()
        same(got, zeroed)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64, torch.int32, torch.float16))
def test_cpu_scalars_that_are_views(dtype: torch.dtype) -> None:
    c = torch.tensor([9, 2, 7], dtype=dtype)
    d = torch.full((2, 2), 4.0, device=DEVICE)
    for i, value in enumerate((9.0, 2.0, 7.0)):
        same(d * c[i], torch.full((2, 2), 4 * value))
        same(d / c[i], torch.full((2, 2), 4 / value), 1e-6)
        same(d.masked_fill(d > 0, c[i]), torch.full((2, 2), value))
    if dtype is torch.float32:
        same(torch.where(d > 5, d, c[2]), torch.full((2, 2), 7.0))


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


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int8))
def test_interleaving(dtype: torch.dtype) -> None:
    x = torch.arange(16).reshape(1, 2, 1, 8).to(dtype).to(DEVICE)
    same(torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)[0, 0, 0], [-1, 0, -3, 2, -5, 4, -7, 6])
    same(torch.cat([x[..., ::2], x[..., 1::2]], -1)[0, 0, 0], [0, 2, 4, 6, 1, 3, 5, 7])
    left, right = x.chunk(2, -1)
    same(torch.cat((-right, left), -1)[0, 1, 0], [-12, -13, -14, -15, 8, 9, 10, 11])


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
