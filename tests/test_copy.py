"""Copies between host and device and on the device: every dtype, layout, offset and bit pattern."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import ALL as DTYPES

NARROW = [d for d in DTYPES if d.itemsize < 4]


def sample(dtype: torch.dtype, *sizes: int, seed: int = 0) -> torch.Tensor:
    """Values that every pair of dtypes converts alike (small, whole, some negative where possible)."""
    g = torch.Generator().manual_seed(seed)
    low = 0 if dtype in (torch.uint8, torch.bool) else -100
    return torch.randint(low, 2 if dtype == torch.bool else 101, sizes, generator=g).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bits, so that NaN equals itself and -0 differs from 0."""
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7, 64, 1001, 65_537, 200_003])
def test_round_trip(dtype: torch.dtype, n: int) -> None:
    x = sample(dtype, n)
    y = x.to("webgpu")
    assert y.device == torch.device("webgpu:0")
    assert y.dtype == dtype
    assert same_bits(y.cpu(), x)


@pytest.mark.parametrize("source, target", list(itertools.product(DTYPES, DTYPES)))
def test_every_pair_of_dtypes_in_every_direction(source: torch.dtype, target: torch.dtype) -> None:
    x = sample(source, 5, 7)
    want = x.to(target)
    on_device = x.to("webgpu")
    assert same_bits(on_device.to(target), want)  # device to device
    assert same_bits(torch.empty(5, 7, dtype=target, device="webgpu").copy_(x), want)  # up
    assert same_bits(torch.empty(5, 7, dtype=target).copy_(on_device), want)  # down
    assert same_bits(x.to("webgpu", target), want)
    assert same_bits(on_device.to("cpu", target), want)
    assert same_bits(torch.empty(7, 5, dtype=target, device="webgpu").t().copy_(on_device), want)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("direction", ["up", "on device"])
def test_neighbours_in_the_same_word_survive(dtype: torch.dtype, direction: str) -> None:
    for start, length in itertools.product(range(5), range(1, 10)):
        host = sample(dtype, 16, seed=1)
        device = host.to("webgpu")
        piece = ~sample(dtype, length, seed=2) if dtype == torch.bool else sample(dtype, length, seed=2) + 1
        host[start : start + length] = piece
        device[start : start + length] = piece if direction == "up" else piece.to("webgpu")
        assert same_bits(device, host), (start, length)
        assert same_bits(device[start : start + length], host[start : start + length]), (start, length)


@pytest.mark.parametrize("dtype", DTYPES)
def test_offset_views_download(dtype: torch.dtype) -> None:
    host = sample(dtype, 40)
    device = host.to("webgpu")
    for start, length in itertools.product(range(9), (0, 1, 2, 3, 5, 8, 13)):
        assert same_bits(device[start : start + length], host[start : start + length]), (start, length)
    assert [v.item() for v in device] == host.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gappy_views_both_ways(dtype: torch.dtype) -> None:
    host, values = sample(dtype, 9, 11), sample(dtype, 3, 4, seed=3)
    device = host.to("webgpu")
    assert same_bits(device[1::3, 2::3], host[1::3, 2::3])
    device[1::3, 2:10:2].copy_(values)
    host[1::3, 2:10:2].copy_(values)
    assert same_bits(device, host)
    device.t()[4:8, 2:5].copy_(values.t().to("webgpu"))
    host.t()[4:8, 2:5].copy_(values.t())
    assert same_bits(device, host)
    target = torch.zeros(9, 11, dtype=dtype)
    target[::2, ::2].copy_(device[::2, ::2])
    assert same_bits(target[::2, ::2], host[::2, ::2])
    assert not target[1::2].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_stride_and_offset(dtype: torch.dtype) -> None:
    host = sample(dtype, 60)
    device = host.to("webgpu")
    for size, stride, offset in [
        ((3, 4), (1, 3), 0),
        ((3, 4), (4, 1), 7),
        ((5, 5), (2, 3), 1),  # elements shared between positions
        ((2, 3, 4), (0, 20, 5), 3),
        ((), (), 59),
        ((4, 0), (1, 1), 2),
    ]:
        assert same_bits(device.as_strided(size, stride, offset), host.as_strided(size, stride, offset)), (size, stride)
        assert same_bits(host.as_strided(size, stride, offset).to("webgpu"), host.as_strided(size, stride, offset))
    assert same_bits(host[:6].expand(4, 6).to("webgpu"), host[:6].expand(4, 6))
    assert same_bits(device[:6, None].expand(6, 4), host[:6, None].expand(6, 4))
    assert same_bits(host.flip(0).to("webgpu"), host.flip(0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_copies(dtype: torch.dtype) -> None:
    row, target = sample(dtype, 6), torch.empty(4, 6, dtype=dtype)
    want = row.expand(4, 6)
    assert same_bits(target.to("webgpu").copy_(row), want)
    assert same_bits(target.to("webgpu").copy_(row.to("webgpu")), want)
    assert same_bits(target.clone().copy_(row.to("webgpu")), want)
    assert same_bits(target.to("webgpu").copy_(row[2]), row[2].expand(4, 6))
    with pytest.raises(RuntimeError):
        target.to("webgpu").copy_(torch.zeros(5, dtype=dtype))
    with pytest.raises(RuntimeError):
        target.to("webgpu").copy_(torch.zeros(5, dtype=dtype, device="webgpu"))


@pytest.mark.parametrize("n", [5, 100_000])
def test_non_blocking_sources_may_change_at_once(n: int) -> None:
    host = torch.full((n,), 7.0)
    device = host.to("webgpu", non_blocking=True)
    host.fill_(-1)
    assert (device.cpu() == 7).all()
    device.copy_(torch.full((n,), 9.0), non_blocking=True)
    rubbish = [torch.full((n,), -3.0) for _ in range(4)]
    assert (device.cpu() == 9).all()
    down = device.to("cpu", non_blocking=True)
    assert (down == 9).all()
    assert (torch.full((n,), 5.0).pin_memory().to("webgpu", non_blocking=True).cpu() == 5).all()
    assert len(rubbish) == 4


def test_layouts_are_preserved() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    device = image.to("webgpu")
    assert device.stride() == image.stride()
    assert device.is_contiguous(memory_format=torch.channels_last)
    assert device.cpu().stride() == image.stride()
    assert same_bits(device, image)
    plain = device.contiguous()
    assert plain.is_contiguous()
    assert same_bits(plain, image)
    back = plain.to(memory_format=torch.channels_last)
    assert back.stride() == image.stride()
    assert same_bits(back, image)
    transposed = torch.randn(4, 6).t()
    assert transposed.to("webgpu").stride() == (1, 6)
    assert same_bits(transposed.to("webgpu"), transposed)
    video = torch.randn(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)
    assert same_bits(video.to("webgpu"), video)
    assert video.to("webgpu").stride() == video.stride()


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_within_one_storage(dtype: torch.dtype) -> None:
    host = sample(dtype, 301)
    device = host.to("webgpu")
    device[1:201].copy_(device[101:301])  # overlapping: as if the source had been read first
    host[1:201] = host[101:301].clone()
    assert same_bits(device, host)
    device[100:300].copy_(device[3:203])
    host[100:300] = host[3:203].clone()
    assert same_bits(device, host)
    square = sample(dtype, 9, 9)
    on_device = square.to("webgpu")
    on_device.copy_(on_device.t())
    assert same_bits(on_device, square.t())
    on_device.copy_(on_device)
    assert same_bits(on_device, square.t())


def test_float64_and_complex_sources_convert_on_the_way_up() -> None:
    x = torch.tensor([1.5, -2.25, 1e300, float("nan"), 1 / 3], dtype=torch.float64)
    assert same_bits(x.to("webgpu", torch.float32), x.float())
    assert same_bits(torch.empty(5, device="webgpu").copy_(x), x.float())
    assert same_bits(torch.empty(5, dtype=torch.float64).copy_(x.to("webgpu", torch.float32)), x.float().double())
    imaginary = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # a view with the negative bit
    assert imaginary.to("webgpu").tolist() == [-2.0, 4.0]
    assert torch._neg_view(torch.tensor([1.0, -2.0], device="webgpu")).cpu().tolist() == [-1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_half_bit_patterns_widen_and_narrow_exactly(dtype: torch.dtype) -> None:
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    halves = bits.view(dtype)
    device = bits.to("webgpu").view(dtype)
    assert same_bits(device, halves)
    wide, want = device.float().cpu(), halves.float()
    number = ~want.isnan()
    assert same_bits(wide[number], want[number])
    assert torch.equal(wide.isnan(), want.isnan())
    again = device.float().to(dtype).cpu()
    assert same_bits(again[number], halves[number])
    assert again[~number].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_half(dtype: torch.dtype) -> None:
    infinity = 0x7C00 if dtype == torch.float16 else 0x7F80
    halves = torch.arange(0, infinity, dtype=torch.int32).to(torch.int16).view(dtype).float()
    between = (halves[1:].double() + halves[:-1].double()) / 2  # ties, also among the subnormals
    ties = between.float()
    bits = ties.view(torch.int32)
    edge = torch.tensor([65504.0, 65519.9, 65520.0, 65536.0, 1e38, 3.4e38, float("inf"), 1e-45, 5.9e-8, 2.9e-8, 0.0])
    values = torch.cat([ties, (bits + 1).view(torch.float32), (bits - 1)[1:].view(torch.float32), edge])
    values = torch.cat([values, -values])
    if dtype == torch.bfloat16:  # adapters may flush float32 subnormals, which are bfloat16's subnormals
        values = values[(values == 0) | (values.abs() >= torch.finfo(torch.float32).tiny)]
    assert same_bits(values.to("webgpu").to(dtype), values.to(dtype))
    nan = torch.tensor([float("nan"), -float("nan")], device="webgpu")
    assert nan.to(dtype).cpu().isnan().all()
    assert nan.to(dtype).float().cpu().isnan().all()


def test_int64_beyond_32_bits() -> None:
    whole = [
        0,
        1,
        -1,
        2**31,
        -(2**31),
        2**31 + 1,
        2**32,
        -(2**32) - 1,
        2**53 + 1,
        2**62,
        -(2**62) - 12345,
        2**63 - 1,
        -(2**63),
    ]
    x = torch.tensor(whole)
    device = x.to("webgpu")
    assert device.tolist() == whole
    assert same_bits(device.float(), x.float())
    assert same_bits(device.int(), x.int())
    assert same_bits(device.bool(), x.bool())
    floats = torch.tensor([2.0**31, -(2.0**31), 2.0**32 + 512, -(2.0**40), 2.0**62, -(2.0**63), 1e15, -3.99, 3.99])
    assert same_bits(floats.to("webgpu").long(), floats.long())
    assert same_bits(floats.to("webgpu").half().bfloat16().bool(), floats.half().bfloat16().bool())


def test_special_floats_become_bool() -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, float("nan"), float("inf"), 0.5])
    assert x.to("webgpu").bool().tolist() == [False, False, True, True, True, True]


def test_small_uploads_neither_submit_nor_wait() -> None:
    from torch_webgpu import _C

    torch.zeros(3, device="webgpu").cpu()
    before = _C.stats()
    kept = [torch.full((n,), float(n)).to("webgpu") for n in (1, 5, 1000)] + [torch.ones(7, dtype=torch.bool).to("webgpu")]
    after = _C.stats()
    assert after["submits"] == before["submits"]
    assert after["readbacks"] == before["readbacks"]
    assert [t.numel() for t in kept] == [1, 5, 1000, 7]
    assert (kept[2].cpu() == 1000).all()


def test_uploads_keep_their_place_among_ops() -> None:
    def run(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x, total = torch.zeros(50, device=device), torch.zeros(50, device=device)
        for i in range(400):
            fresh = torch.full((50,), float(i))
            if i % 7 == 3:
                x.copy_(fresh)  # overwrites what the ops before read
            elif i % 7 == 5:
                x[3:20].copy_(fresh[3:20] * 2)
            else:
                total += x
            if i % 90 == 89:
                x.copy_(torch.full((50,), 0.5).to(device))
        return x.cpu(), total.cpu()

    for on_device, on_cpu in zip(run("webgpu"), run("cpu"), strict=True):
        assert same_bits(on_device, on_cpu)


def test_more_uploads_than_one_submit_holds() -> None:
    sources = [torch.full((15_000,), float(i)) for i in range(60)]  # 3.6 MB of small uploads
    devices = [s.to("webgpu") for s in sources]
    assert all(same_bits(d, s) for d, s in zip(devices, sources, strict=True))
    big, small = torch.zeros(100_000, device="webgpu"), torch.full((100,), 3.0)
    big[:100].copy_(small)
    big.copy_(torch.ones(100_000))  # a large upload after a small one that is still waiting
    big[5:10].copy_(small[5:10])
    assert big.cpu().sum().item() == 100_010
