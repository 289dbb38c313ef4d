"""Shapes, strides and views that broke other stacks, each widened to its kind. Expected values are arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from traps import DEVICE, FLOATS, INF, NAN, NARROW, noise, put, same


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


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int8))
def test_interleaving(dtype: torch.dtype) -> None:
    x = torch.arange(16).reshape(1, 2, 1, 8).to(dtype).to(DEVICE)
    same(torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)[0, 0, 0], [-1, 0, -3, 2, -5, 4, -7, 6])
    same(torch.cat([x[..., ::2], x[..., 1::2]], -1)[0, 0, 0], [0, 2, 4, 6, 1, 3, 5, 7])
    left, right = x.chunk(2, -1)
    same(torch.cat((-right, left), -1)[0, 1, 0], [-12, -13, -14, -15, 8, 9, 10, 11])
