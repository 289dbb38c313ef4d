"""In-place and ``out=`` forms: shapes that do not fit, overlaps, gaps, dtypes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

DEVICE = "webgpu"


@pytest.mark.parametrize("name", ["add_", "floor_divide_", "ldexp_", "copy_", "hypot_", "logaddexp", "addcmul_"])
@pytest.mark.parametrize("shape", [(0, 1, 3), (2, 1, 3)])
def test_a_tensor_written_in_place_is_not_resized(name: str, shape: tuple[int, ...]) -> None:
    if name == "logaddexp":
        return _out_that_is_an_input(shape)
    x, y = torch.ones(shape, device=DEVICE), torch.ones((shape[0], 10, 3), device=DEVICE)
    with pytest.raises(RuntimeError):
        getattr(x, name)(y, y) if name == "addcmul_" else getattr(x, name)(y)
    assert x.shape == shape


def _out_that_is_an_input(shape: tuple[int, ...]) -> None:
    x, y = torch.ones(shape, device=DEVICE), torch.ones((shape[0], 10, 3), device=DEVICE)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.mul(x, y, out=x)
    assert x.shape == shape


def test_addr_and_addbmm() -> None:
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    for beta in (0.0, 0.5):
        c = torch.randn(4, 6)
        want = torch.addbmm(c, a, b, beta=beta, alpha=0.2)
        torch.testing.assert_close(torch.addbmm(c.to(DEVICE), a.to(DEVICE), b.to(DEVICE), beta=beta, alpha=0.2).cpu(), want)
        want = torch.addr(c, a[0, :, 0], b[0, 0], beta=beta, alpha=0.2)
        got = torch.addr(c.to(DEVICE), a[0, :, 0].to(DEVICE), b[0, 0].to(DEVICE), beta=beta, alpha=0.2)
        torch.testing.assert_close(got.cpu(), want)
    with pytest.raises(RuntimeError):
        torch.ones((), device=DEVICE).addr_(torch.ones(2, device=DEVICE), torch.ones(3, device=DEVICE))


OVERLAPS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "gather": lambda x, i, out: torch.gather(x, 0, i, out=out),
    "take": lambda x, i, out: torch.take(x, i, out=out),
    "cat": lambda x, i, out: torch.cat((x, x), out=out),
    "masked_select": lambda x, i, out: torch.masked_select(x, x > 0, out=out),
    "index_select": lambda x, i, out: torch.index_select(x, 0, i, out=out),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_out_must_not_overlap_the_input(name: str) -> None:
    x = torch.arange(1.0, 7.0, device=DEVICE)
    i = torch.tensor([1, 0, 2], device=DEVICE)
    for out in (x, x[:3]):
        with pytest.raises(RuntimeError, match="single memory location"):
            OVERLAPS[name](x, i, out)
    assert x.tolist() == [1, 2, 3, 4, 5, 6]


def test_out_forms_of_composed_ops() -> None:
    here = torch.tensor([[1.0, 0, 3], [0, 0, 3]])
    x = here.to(DEVICE)
    places = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert torch.equal(torch.nonzero(x, out=places).cpu(), torch.nonzero(here)) and places.shape == (3, 2)
    counts = torch.ones(8, device=DEVICE)[::2]
    torch.histc(x, bins=4, out=counts)
    assert torch.equal(counts.cpu(), torch.histc(here, bins=4)) and counts.stride() == (2,)
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    torch.mode(x, out=(values, indices))
    assert values.tolist() == [0, 0] and indices.shape == (2,)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.histc(x, out=places)


def test_ranges_of_integers_from_floats() -> None:
    assert torch.arange(1.0, 5.000001, 2.0, dtype=torch.int64, device=DEVICE).tolist() == [1, 3]
    assert torch.arange(0, 2, 0.5, dtype=torch.int32, device=DEVICE).tolist() == [0, 0, 0, 0]
    out = torch.empty(0, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="nonzero"):
        torch.arange(0, 64, 0.5, out=out)
    with pytest.raises(RuntimeError, match="unsupported range"):
        torch.arange(0, float("inf"), device=DEVICE)


def test_shifts_by_64_bit_numbers() -> None:
    x, n = torch.tensor([-8, -8, 5, 5]), torch.tensor([2**32, -1, 2**40, 2])
    assert torch.bitwise_right_shift(x.to(DEVICE), n.to(DEVICE)).tolist() == [-1, -1, 0, 1]
    assert torch.bitwise_left_shift(x.to(DEVICE), n.to(DEVICE)).tolist() == [0, 0, 0, 20]


def test_not_a_number_goes_through() -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([-inf, inf, nan], device=DEVICE)
    assert torch.nn.functional.gelu(x).isnan().tolist() == [True, False, True]
    assert torch.nn.functional.gelu(x, approximate="tanh").isnan().tolist() == [True, False, True]
    assert torch.div(x, 2.0, rounding_mode="floor").isnan().tolist() == [True, True, True]
    grad = torch.ops.aten.native_dropout_backward(x, torch.zeros(3, dtype=torch.bool, device=DEVICE), 2.0)
    assert grad.isnan().tolist() == [True, True, True]
    assert torch.mode(torch.tensor([[3.0, nan, 1]], device=DEVICE)).values.isnan().item()


def test_booleans() -> None:
    a, b = torch.tensor([True, False, True]), torch.tensor([False, False, True])
    assert torch.clamp_max(a.to(DEVICE), b.to(DEVICE)).tolist() == [False, False, True]
    assert torch.clamp_min(a.to(DEVICE), b.to(DEVICE)).tolist() == [True, False, True]
    i = torch.tensor([0, 1, 1], device=DEVICE)
    assert a.to(DEVICE).index_add_(0, i, b.to(DEVICE), alpha=True).tolist() == [True, True, True]
