"""torch.use_deterministic_algorithms: sums in one order, the last of several values, no memory that was never written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _case(n: int, places: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Many updates of widely different size that meet at few places: any other order gives other bits."""
    g = torch.Generator().manual_seed(0)
    index = torch.randint(0, places, (n,), generator=g)
    values = torch.randn(n, generator=g) * 10.0 ** torch.randint(-3, 4, (n,), generator=g)
    return index, values.to(dtype)


def _in_turn(start: torch.Tensor, index: torch.Tensor, values: torch.Tensor, op: str = "add") -> torch.Tensor:
    """The updates one by one in float32, as the definition has them."""
    out = start.clone()
    for i, v in zip(index.tolist(), values, strict=True):
        out[i] = out[i] + v if op == "add" else out[i] * v if op == "prod" else v
    return out


Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SUMS: dict[str, Update] = {
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i, v),
    "index_put": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "put": lambda x, i, v: x.clone().put_(i, v, accumulate=True),
    "scatter_reduce": lambda x, i, v: x.scatter_reduce(0, i, v, "sum"),
    "scatter with add": lambda x, i, v: x.scatter(0, i, v, reduce="add"),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_made_in_order(name: str) -> None:
    index, values = _case(9000, 5)  # more than one launch
    start = torch.zeros(5)
    got = SUMS[name](start.to("webgpu"), index.to("webgpu"), values.to("webgpu"))
    assert torch.equal(got.cpu(), _in_turn(start, index, values))


def test_products_and_last_values() -> None:
    index, values = _case(600, 7)
    values = values.sign() * (1 + values.abs() % 1)
    start, device = torch.ones(7), [t.to("webgpu") for t in (torch.ones(7), index, values)]
    got = device[0].scatter_reduce(0, device[1], device[2], "prod")
    assert torch.equal(got.cpu(), _in_turn(start, index, values, "prod"))
    last = _in_turn(start, index, values, "put")
    for got in (
        device[0].scatter(0, device[1], device[2]),
        device[0].index_put((device[1],), device[2]),
        device[0].index_copy(0, device[1], device[2]),
    ):
        assert torch.equal(got.cpu(), last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_rows_columns_and_dtypes(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 9, (6, 5, 3), generator=g).to(dtype)
    for dim in range(3):
        n = 40
        shape = [6, 5, 3]
        shape[dim] = n
        values = torch.randint(-4 if dtype.is_signed else 0, 4, shape, generator=g).to(dtype)
        rows = torch.randint(0, x.shape[dim], (n,), generator=g)
        each = torch.randint(0, x.shape[dim], shape, generator=g)
        for call in (
            lambda x, r, e, v, d=dim: x.index_add(d, r, v),
            lambda x, r, e, v, d=dim: x.scatter_add(d, e, v),
            lambda x, r, e, v, d=dim: x.scatter(d, e, v),
            lambda x, r, e, v, d=dim: x.index_copy(d, r, v),
            lambda x, r, e, v, d=dim: x.mT.scatter_add(d, e.mT[:6, :3], v.mT[:6, :3]) if d == 0 else x,
        ):
            want = call(x, rows, each, values)
            got = call(*(t.to("webgpu") for t in (x, rows, each, values)))
            assert torch.equal(got.cpu(), want)  # small integers: every order gives the same sum


def test_several_indices() -> None:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(7, 4, 6, 3, generator=g)
    i, k = torch.randint(-7, 7, (50,), generator=g), torch.randint(-6, 6, (50,), generator=g)
    values = torch.randn(50, 4, 3, generator=g) * 1e3
    device = [t.to("webgpu") for t in (x, i, k, values)]
    want = x.clone()
    for n in range(50):
        want[i[n], :, k[n]] += values[n]
    got = torch.ops.aten.index_put(device[0], [device[1], None, device[2]], device[3], True)
    assert torch.equal(got.cpu(), want)


def test_backward_of_embeddings_and_gathers_repeats_itself() -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        table = nn.Embedding(11, 8).to("webgpu")
        tokens = torch.randint(0, 11, (4, 64)).to("webgpu")
        x = torch.randn(16, 8, device="webgpu", requires_grad=True)
        hidden = table(tokens).cos()
        picked = x.gather(0, torch.randint(0, 16, (200, 8)).to("webgpu"))
        (hidden.square().sum() + (picked**3).sum() + x[torch.randint(0, 16, (99,)).to("webgpu")].exp().sum()).backward()
        assert table.weight.grad is not None and x.grad is not None
        return [table.weight.grad.cpu(), x.grad.cpu()]

    one, two = gradients(), gradients()
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_an_index_out_of_range_still_raises() -> None:
    x = torch.zeros(4, device="webgpu")
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        x.index_add(0, torch.tensor([1, 9], device="webgpu"), torch.ones(2, device="webgpu")).cpu()
    with pytest.raises(RuntimeError, match="index 9 is out of bounds"):
        x.scatter_add(0, torch.tensor([1, 9], device="webgpu"), torch.ones(2, device="webgpu")).cpu()
    assert (x + 1).tolist() == [1] * 4


def test_the_mode_may_change_between_calls() -> None:
    """The same call is prepared once for each mode."""
    index, values = _case(3000, 3)
    start = torch.zeros(3, device="webgpu")
    args = index.to("webgpu"), values.to("webgpu")
    want = _in_turn(torch.zeros(3), index, values)
    for on in (False, True, False, True):
        torch.use_deterministic_algorithms(on)
        got = start.index_add(0, *args).cpu()
        torch.testing.assert_close(got, want, atol=1.0, rtol=1e-3)
        assert not on or torch.equal(got, want)


def test_compiled() -> None:
    index, values = _case(3000, 3)
    compiled = torch.compile(lambda x, i, v: (x.index_add(0, i, v), x.scatter_add(0, i, v)), backend="webgpu")
    want = _in_turn(torch.zeros(3), index, values)
    for on in (True, False, True):
        torch.use_deterministic_algorithms(on)
        for got in compiled(torch.zeros(3, device="webgpu"), index.to("webgpu"), values.to("webgpu")):
            torch.testing.assert_close(got.cpu(), want, atol=1.0, rtol=1e-3)
            assert not on or torch.equal(got.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_memory_that_was_never_written_is_filled(dtype: torch.dtype) -> None:
    for make in (
        lambda d: torch.empty(5, dtype=dtype, device=d),
        lambda d: torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=d),
        lambda d: torch.empty_like(torch.zeros(3, dtype=dtype, device=d)),
        lambda d: torch.zeros(4, dtype=dtype, device=d).new_empty(2, 2),
        lambda d: torch.zeros(3, dtype=dtype, device=d).resize_(64),
        lambda d: torch.zeros(0, dtype=dtype, device=d).resize_(3),
    ):
        got, want = make("webgpu").cpu(), make("cpu")
        assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))
        assert not want.dtype.is_floating_point or want.isnan().any()
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    try:
        assert torch.empty(3, dtype=dtype, device="webgpu").shape == (3,)
    finally:
        setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)  # noqa: B010


def test_training_repeats_itself_bit_by_bit() -> None:
    def run() -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 16), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 20)
        ).to("webgpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        tokens = torch.randint(0, 20, (32, 4), device="webgpu")
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), tokens[:, 0])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert run() == run()


def test_what_pytorch_has_no_deterministic_form_of_raises() -> None:
    x = torch.rand(1, 1, 4, 4, device="webgpu")
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        F.max_unpool2d(pooled, places, (2, 2))
