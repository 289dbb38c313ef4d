"""Random numbers: known Philox words, moments, ranges, reproducibility, sampling."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

DEVICE = "webgpu"
SIZES = (0, 1, 2, 31, 63, 64, 65, 255, 257, 1000, 4097)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
N = 40_003


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1234)


def empty(dtype: torch.dtype = torch.float32, n: int = N) -> torch.Tensor:
    return torch.empty(n, dtype=dtype, device=DEVICE)


def moments(t: torch.Tensor, mean: float, var: float, slack: float = 0.0) -> None:
    """Mean and variance within five standard errors of a sample (kurtosis up to that of an exponential)."""
    x = t.cpu().double()
    assert abs(x.mean() - mean) < 5 * math.sqrt(var / x.numel()) + slack * abs(mean)
    assert abs(x.var() / var - 1) < 5 * math.sqrt(9 / x.numel()) + slack


def test_philox_known_answer() -> None:
    """The first vector of Random123's kat_vectors: counter 0, key 0."""
    torch.manual_seed(0)
    x = torch.empty(2, dtype=torch.int64, device=DEVICE).random_(-(2**63), None).cpu()
    words = [int(v) >> s & 0xFFFFFFFF for v in x for s in (0, 32)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("n", SIZES)
def test_prefix_does_not_depend_on_size(n: int) -> None:
    """An element's value is a matter of its index, not of the launch; and every element is written."""
    torch.manual_seed(5)
    long = torch.rand(5000, device=DEVICE).cpu()
    torch.manual_seed(5)
    assert torch.equal(torch.rand(n, device=DEVICE).cpu(), long[:n])


# ---------------------------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: torch.dtype) -> None:
    x = empty(dtype).uniform_()
    assert x.min().item() >= 0 and x.max().item() < 1
    moments(x, 0.5, 1 / 12, 0.01)
    x = empty(dtype).uniform_(-1, 3).cpu()
    assert x.min() >= -1 and x.max() < 3
    moments(x, 1, 16 / 12, 0.01)
    with pytest.raises(RuntimeError, match="from"):
        empty().uniform_(2, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype: torch.dtype) -> None:
    moments(empty(dtype).normal_(), 0, 1, 0.01)
    x = empty(dtype).normal_(2, 3).cpu().double()
    moments(x, 2, 9, 0.01)
    z = (x - 2) / 3
    assert z.isfinite().all() and abs((z**3).mean()) < 0.1 and abs((z**4).mean() - 3) < 0.3
    pairs = z[: N // 2 * 2].view(-1, 2)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 0.04
    with pytest.raises(RuntimeError, match="std"):
        empty().normal_(0, -1)


def test_normal_of_tensors() -> None:
    mean, std = torch.full((N, 1), 3.0, device=DEVICE), torch.tensor([0.0, 2.0], device=DEVICE)
    for x in (torch.normal(mean, std), torch.normal(mean.expand(N, 2), std.expand(N, 2))):
        assert (x[:, 0] == 3).all()
        moments(x[:, 1], 3, 4)
    moments(torch.normal(mean, 2.0), 3, 4)
    moments(torch.normal(1.0, std[1:].expand(N)), 1, 4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential(dtype: torch.dtype) -> None:
    x = empty(dtype).exponential_(2).cpu()
    assert x.min() > 0 and x.isfinite().all()
    moments(x, 0.5, 0.25, 0.01)
    with pytest.raises(RuntimeError, match="lambda"):
        empty().exponential_(0)


def test_other_distributions() -> None:
    for dtype in (torch.float32, torch.int32):
        x = empty(dtype).geometric_(0.3)
        assert x.min().item() == 1
        moments(x, 1 / 0.3, 0.7 / 0.09)
    moments(empty().log_normal_(0, 0.5).log(), 0, 0.25, 0.01)
    x = empty().cauchy_(1, 2).cpu()
    assert abs(x.median() - 1) < 0.1
    low, high = torch.quantile(x, torch.tensor([0.25, 0.75]))
    assert abs(low + 1) < 0.2 and abs(high - 3) < 0.2


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS))
def test_random_range(dtype: torch.dtype) -> None:
    x = empty(dtype).random_(10).cpu()
    assert x.min() == 0 and x.max() == 9
    moments(x, 4.5, 99 / 12)
    x = empty(dtype).random_(3, 100).cpu()
    assert x.min() == 3 and x.max() == 99
    moments(x, 51, (97**2 - 1) / 12)
    with pytest.raises(RuntimeError, match="less than"):
        empty(dtype).random_(3, 3)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_random_whole_range(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = empty(dtype).random_().cpu().double()
    assert x.min() >= 0 and x.max() > info.max * 0.99
    moments(x, info.max / 2, info.max**2 / 12, 0.02)
    x = empty(dtype).random_(info.min, None).cpu().double()
    width = info.max - info.min
    assert x.min() <= info.min + width * 0.01 and x.max() >= info.max - width * 0.01
    with pytest.raises(RuntimeError, match="out of bounds"):
        empty(torch.uint8).random_(-1, 5)


def test_random_wide() -> None:
    x = empty(torch.int64).random_(-(2**40), 2**41).cpu()
    assert x.min() >= -(2**40) and x.max() < 2**41
    moments(x, 2**39, (3 * 2**40) ** 2 / 12, 0.02)
    assert (x & 1).double().mean() == pytest.approx(0.5, abs=0.02)
    assert set(empty(torch.bool, 100).random_().cpu().tolist()) == {True, False}


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool))
def test_bernoulli(dtype: torch.dtype) -> None:
    moments(empty(dtype).bernoulli_(0.25), 0.25, 0.1875)
    p = torch.tensor([0.0, 0.25, 1.0], device=DEVICE)
    x = torch.empty(5000, 3, dtype=dtype, device=DEVICE).bernoulli_(p).cpu().float()
    assert x[:, 0].max() == 0 and x[:, 2].min() == 1 and abs(x[:, 1].mean() - 0.25) < 0.05


def test_bernoulli_forms() -> None:
    p = torch.full((N,), 0.7, device=DEVICE)
    moments(torch.bernoulli(p), 0.7, 0.21)
    moments(torch.bernoulli(p, 0.2), 0.2, 0.16)
    moments(torch.bernoulli(p, out=empty(n=0)), 0.7, 0.21)
    with pytest.raises(RuntimeError, match=r"\[0, 1\]"):
        empty().bernoulli_(1.5)


def test_factories() -> None:
    x = torch.randn(2, 3, device=DEVICE)
    for made in (
        torch.rand_like(x),
        torch.randn_like(x),
        torch.randint_like(x, 5),
        torch.normal(0.0, 1.0, (2, 3), device=DEVICE),
    ):
        assert made.shape == (2, 3) and made.device.type == DEVICE
    moments(torch.rand(N, device=DEVICE), 0.5, 1 / 12)
    moments(torch.randn(N, device=DEVICE), 0, 1)
    moments(torch.randint(5, 10, (N,), device=DEVICE), 7, 2)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.uint8))
def test_strided(dtype: torch.dtype) -> None:
    """Only the view is written, with the values a contiguous tensor gets."""
    view_of: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda t: t.t(),
        lambda t: t[1:, 1::3],
        lambda t: t.view(-1)[3:10],
    )
    for view in view_of:
        base = torch.full((6, 10), 77, dtype=dtype, device=DEVICE)
        outside = torch.ones(6, 10, dtype=torch.bool)
        view(outside).zero_()
        torch.manual_seed(9)
        view(base).random_(50)
        torch.manual_seed(9)
        want = torch.empty(view(outside).shape, dtype=dtype, device=DEVICE).random_(50)
        assert torch.equal(view(base.cpu()), want.cpu())
        assert (base.cpu()[outside] == 77).all()


# ---------------------------------------------------------------------------------------------------- generators


def test_seed_and_state() -> None:
    torch.manual_seed(3)
    first, second = torch.randn(7, device=DEVICE).cpu(), torch.randn(7, device=DEVICE).cpu()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(torch.randn(7, device=DEVICE).cpu(), first)
    state = torch.webgpu.get_rng_state()  # type: ignore[attr-defined]
    a = torch.rand(5, device=DEVICE).cpu()
    torch.webgpu.set_rng_state(state)  # type: ignore[attr-defined]
    assert torch.equal(torch.rand(5, device=DEVICE).cpu(), a)


def test_own_generator() -> None:
    def draws(g: torch.Generator) -> list[torch.Tensor]:
        w = torch.ones(9, device=DEVICE)
        made = [
            torch.randn(5, device=DEVICE, generator=g),
            torch.rand(5, device=DEVICE, generator=g),
            torch.randint(0, 1000, (5,), device=DEVICE, generator=g),
            torch.randperm(20, device=DEVICE, generator=g),
            torch.multinomial(w, 9, generator=g),
            torch.multinomial(w, 9, True, generator=g),
            torch.multinomial(w, 1, generator=g),
            torch.bernoulli(w * 0.5, generator=g),
            empty(n=4).exponential_(generator=g),
            empty(n=4).random_(generator=g),
            empty(n=30).bernoulli_(0.5, generator=g),
            empty(n=30).bernoulli_(torch.full((30,), 0.5, device=DEVICE), generator=g),
        ]
        return [t.cpu() for t in made]

    default = torch.webgpu.get_rng_state()  # type: ignore[attr-defined]
    first = draws(torch.Generator(DEVICE).manual_seed(11))
    again = draws(torch.Generator(DEVICE).manual_seed(11))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.webgpu.get_rng_state(), default)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SIZES[1:])
def test_dropout(dtype: torch.dtype, n: int) -> None:
    x = torch.arange(1, n + 1, device=DEVICE).remainder(5).add(1).to(dtype)
    y, mask = torch.native_dropout(x, 0.25, True)
    want = torch.where(mask.cpu(), x.cpu().float() / 0.75, 0.0)
    torch.testing.assert_close(y.cpu().float(), want, rtol=1e-2, atol=0)
    assert n < 1000 or abs(mask.float().cpu().mean() - 0.75) < 0.07


def test_dropout_forms() -> None:
    x = torch.ones(100, 50).to(DEVICE).requires_grad_()
    y = F.dropout(x, 0.3, True)
    y.backward(torch.ones_like(y))
    assert x.grad is not None and torch.equal(x.grad.cpu(), y.detach().cpu())
    assert torch.equal(F.dropout(x, 0.3, False).detach().cpu(), torch.ones(100, 50))
    assert F.dropout(x.detach().t(), 1.0).cpu().abs().max() == 0
    z = torch.nn.Dropout(0.5, inplace=True)(torch.ones(1000, device=DEVICE)).cpu()
    assert set(z.tolist()) == {0.0, 2.0}
    state = torch.webgpu.get_rng_state()  # type: ignore[attr-defined]
    y, mask = torch.native_dropout(x.detach(), 0.5, False)
    assert mask.cpu().all() and torch.equal(y.cpu(), x.detach().cpu())
    assert torch.equal(torch.webgpu.get_rng_state(), state)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize("n", SIZES)
def test_randperm(n: int) -> None:
    p = torch.randperm(n, device=DEVICE).cpu()
    assert torch.equal(p.sort().values, torch.arange(n))
    assert n < 31 or not torch.equal(p, torch.randperm(n, device=DEVICE).cpu())


def test_randperm_forms() -> None:
    assert torch.randperm(9, dtype=torch.int32, device=DEVICE).dtype == torch.int32
    out = torch.empty(0, dtype=torch.int16, device=DEVICE)
    torch.randperm(9, out=out)
    assert sorted(out.cpu().tolist()) == list(range(9))
    first = torch.stack([torch.randperm(4, device=DEVICE) for _ in range(400)])[:, 0].cpu()
    assert torch.bincount(first, minlength=4).min() > 60


WEIGHTS = torch.tensor([0.0, 1, 2, 0, 3, 4, 0])


def shares(samples: torch.Tensor) -> torch.Tensor:
    return torch.bincount(samples.flatten().cpu(), minlength=len(WEIGHTS)).double() / samples.numel()


@pytest.mark.parametrize("dtype", FLOATS)
def test_multinomial_shares(dtype: torch.dtype) -> None:
    w = WEIGHTS.to(DEVICE, dtype)
    for samples in (torch.multinomial(w, 20000, True), torch.multinomial(w.expand(20000, 7), 1)):
        got = shares(samples)
        assert (got[WEIGHTS == 0] == 0).all()
        torch.testing.assert_close(got, WEIGHTS.double() / 10, atol=0.02, rtol=0)


def test_multinomial_without_replacement() -> None:
    x = torch.multinomial(WEIGHTS.to(DEVICE).expand(5000, 7), 2).cpu()
    assert (x[:, 0] != x[:, 1]).all() and (WEIGHTS[x] > 0).all()
    torch.testing.assert_close(shares(x[:, 0]), WEIGHTS.double() / 10, atol=0.04, rtol=0)
    p = WEIGHTS.double() / 10
    second = sum(p[i] * torch.where(torch.arange(7) == i, 0, p) / (1 - p[i]) for i in range(7))
    torch.testing.assert_close(shares(x[:, 1]), second, atol=0.04, rtol=0)
    assert sorted(torch.multinomial(WEIGHTS.to(DEVICE), 4).tolist()) == [1, 2, 4, 5]


@pytest.mark.parametrize("replacement", (False, True))
@pytest.mark.parametrize("n", (1, 255, 2048, 2049, 151936))
def test_multinomial_finds_the_only_category(n: int, replacement: bool) -> None:
    w = torch.zeros(2, n)
    w[0, n - 1], w[1, n // 3] = 1, 1e-30
    assert torch.multinomial(w.to(DEVICE), 1, replacement).tolist() == [[n - 1], [n // 3]]
    assert torch.multinomial(w.to(DEVICE), 3, True).tolist() == [[n - 1] * 3, [n // 3] * 3]


def test_multinomial_vocabulary_is_uniform() -> None:
    x = torch.multinomial(torch.ones(500, 9000, device=DEVICE), 1)
    moments(x, 4499.5, (9000**2 - 1) / 12)


@pytest.mark.parametrize("bad", ([0.0, 0.0], [1.0, float("nan")], [-1.0, 2.0], [float("inf"), 1.0]))
def test_multinomial_of_bad_weights(bad: list[float]) -> None:
    w = torch.tensor(bad, device=DEVICE)
    for samples, replacement in ((1, False), (2, False), (2, True)):
        with pytest.raises(RuntimeError, match="probabilit"):
            torch.multinomial(w, samples, replacement).cpu()


def test_multinomial_errors() -> None:
    w = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="without replacement"):
        torch.multinomial(w, 4)
    with pytest.raises(RuntimeError, match="n_sample <= 0"):
        torch.multinomial(w, 0)
    with pytest.raises(RuntimeError, match="fewer non-zero"):
        torch.multinomial(torch.tensor([1.0, 0.0, 0.0], device=DEVICE), 2).cpu()


def test_growing_shapes_share_pipelines() -> None:
    from torch_webgpu import recipe

    def run(n: int) -> None:
        w = torch.rand(n, device=DEVICE)
        torch.multinomial(w, 1)
        torch.multinomial(w, 2, True)
        torch.topk(w, 10)
        torch.sort(w)
        w.cumsum(0)
        F.dropout(w, n / 10000)

    run(300)
    before = len(recipe._pipelines)
    for n in (301, 407, 999):
        run(n)
    assert len(recipe._pipelines) == before
