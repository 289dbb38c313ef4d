"""Bindings, memory, threads and misuse: inputs that broke other runtimes, each widened to its kind."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from traps import DEVICE, NARROW, OFFSETS, SIZES, noise, put, same


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.int64, torch.uint8))
@pytest.mark.parametrize("offset", OFFSETS)
def test_offsets_of_bindings(offset: int, dtype: torch.dtype) -> None:
    line = (torch.arange(300) % 13).to(dtype)
    x = line.to(DEVICE)
    part = slice(offset, offset + 8)
    same(x[part] * 2, line[part] * 2)
    same(x[part].view(2, 4).sum(1), line[part].view(2, 4).sum(1))
    square = line[part].view(2, 4)
    if dtype is not torch.uint8:
        same(x[part].view(2, 4) @ x[part].view(2, 4).t(), (square.long() @ square.long().t()).to(dtype))


@pytest.mark.parametrize("dtype", (*NARROW, torch.float32, torch.int64, torch.int32))
def test_single_elements(dtype: torch.dtype) -> None:
    one = torch.ones(1, device=DEVICE).to(dtype)
    same(one + one, torch.ones(1).to(dtype) + torch.ones(1).to(dtype))
    same(torch.where(put([True, False]), one, one), torch.ones(2).to(dtype))
    same(one.sum(), 1)
    same(torch.cat([one, one]), torch.ones(2).to(dtype))
    if dtype.is_floating_point:
        same(one.mean(), 1.0)
        same(one @ one, 1.0)
        same(
            F.adaptive_avg_pool2d(torch.ones(1, 1, 2, 2, device=DEVICE, dtype=dtype), 1), torch.ones(1, 1, 1, 1, dtype=dtype)
        )


@pytest.mark.parametrize("n", SIZES)
def test_workgroup_sizes(n: int) -> None:
    x = torch.ones(n, device=DEVICE)
    same(x.sum(), float(n))
    same(x.cumsum(0), torch.arange(1.0, n + 1))
    same(torch.arange(n, device=DEVICE).float().max(), float(n - 1))
    same(x.softmax(0), torch.full((n,), 1 / n), 1e-6)


def test_same_buffer_twice() -> None:
    x = torch.arange(1.0, 9).to(DEVICE)
    torch.add(x, x, out=x)
    x.mul_(x)
    torch.add(x[:4], x[4:], out=x[:4])
    same(x[:4], [104.0, 160.0, 232.0, 320.0])
    x[4:].copy_(x[:4])
    same(x[4:], [104.0, 160.0, 232.0, 320.0])
    y = torch.arange(6.0).to(DEVICE)
    same(y[:3] * y[3:], [0.0, 4.0, 10.0])
    same(torch.cat([y, y]), torch.arange(6.0).repeat(2))
    w = torch.eye(3, device=DEVICE)
    same(w @ w, torch.eye(3))
    same(torch.addcmul(w, w, w), 2 * torch.eye(3))
    v = put([3.0, 4.0])
    same(F.rms_norm(v, (2,), v), torch.tensor([9.0, 16.0]) / 12.5**0.5, 1e-5)


def test_more_inputs_than_bindings() -> None:
    xs = [torch.full((5,), 2.0**i, device=DEVICE) for i in range(17)]
    same(torch.cat(xs).reshape(17, 5)[:, 0], 2.0 ** torch.arange(17.0))
    same(torch.stack(xs)[16], torch.full((5,), 65536.0))


@pytest.mark.parametrize("size", (2**50, 2**60))
def test_allocation_beyond_memory(size: int) -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(size, device=DEVICE)
    assert isinstance(raised.value, torch.OutOfMemoryError)
    same(torch.ones(3, device=DEVICE) + 1, [2.0, 2.0, 2.0])


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex64))
def test_types_the_device_lacks(dtype: torch.dtype) -> None:
    for call in (
        lambda: torch.ones(2, dtype=dtype).to(DEVICE),
        lambda: torch.ones(2, dtype=dtype, device=DEVICE),
        lambda: torch.ones(2, device=DEVICE).to(dtype),
    ):
        with pytest.raises(TypeError, match=r"float64|complex"):
            call()
    assert (torch.ones(2, device=DEVICE) * 0.1).dtype is torch.float32


def test_threads() -> None:
    sums: dict[int, float] = {}

    def work(i: int) -> None:
        x = torch.full((64,), float(i), device=DEVICE)
        for _ in range(50):
            x = x + 1
        sums[i] = float(x.sum())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sums == {i: 64.0 * (i + 50) for i in range(4)}


@pytest.mark.parametrize("n", (1, 5, 4097))
def test_uploads_outlive_their_source(n: int) -> None:
    xs = [torch.full((n,), float(i + 1)).to(DEVICE, non_blocking=True) for i in range(64)]
    for _ in range(64):
        torch.full((n,), -9.0)
    same(torch.stack(xs)[:, -1], torch.arange(1.0, 65))
    back = torch.full((n,), 2.0, device=DEVICE).to("cpu", non_blocking=True)
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    same(back, torch.full((n,), 2.0))


def test_large_table() -> None:
    """160 MB: beyond the default binding limit of 128 MiB."""
    w = torch.empty(40000, 1024, device=DEVICE)
    w.copy_(torch.arange(40000.0)[:, None].expand(40000, 1024))
    same(F.embedding(put([0, 32767, 32768, 39999]), w)[:, 1023], [0.0, 32767.0, 32768.0, 39999.0])
    same(w[-1, -3:], torch.full((3,), 39999.0))
    same((torch.ones(1, 1024, device=DEVICE) @ w[-2:].t())[0], torch.tensor([39998.0, 39999.0]) * 1024, 1e-6)


def test_printing() -> None:
    assert "2, 2" in repr(torch.ones(3, 3, device=DEVICE).nonzero())
    x = noise(4, 4).to(DEVICE)
    odd = (x[::2, 1:], x[:0], put([float("nan"), float("inf"), 1e-30]), put([2**40]), put(1.5), put([True]))
    for t in (*odd, torch.nn.Parameter(x), torch.ones(2000, device=DEVICE), x.half(), x.bfloat16()):
        assert "device='webgpu" in repr(t)


def test_seeds() -> None:
    torch.manual_seed(7)
    a, b = torch.randn(5, device=DEVICE), torch.randn(5, device=DEVICE)
    torch.manual_seed(7)
    same(torch.randn(5, device=DEVICE), a.cpu())
    assert not torch.equal(a.cpu(), b.cpu())
    g = torch.Generator(device=DEVICE).manual_seed(9)
    first, state = torch.rand(4, device=DEVICE, generator=g), g.get_state()
    second = torch.rand(4, device=DEVICE, generator=g)
    g.set_state(state)
    same(torch.rand(4, device=DEVICE, generator=g), second.cpu())
    g.manual_seed(9)
    same(torch.rand(4, device=DEVICE, generator=g), first.cpu())
