"""torch.autocast("webgpu") and torch.amp.GradScaler("webgpu")."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import torch_webgpu

HALVES = [torch.float16, torch.bfloat16]
Call = Callable[[torch.Tensor], torch.Tensor]


def _weights(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to("webgpu")


LOWER: dict[str, Call] = {
    "mm": lambda x: x @ x.T,
    "linear": lambda x: F.linear(x, _weights(3, 8), _weights(3)),
    "bmm": lambda x: torch.bmm(x[None], x.T[None]),
    "addmm": lambda x: torch.addmm(_weights(4, 4), x, x.T),
    "baddbmm": lambda x: torch.baddbmm(_weights(1, 4, 4), x[None], x.T[None]),
    "conv1d": lambda x: F.conv1d(x[None], _weights(2, 4, 3)),
    "conv2d": lambda x: F.conv2d(x[None, None], _weights(2, 1, 3, 3)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], _weights(1, 2, 3, 3)),
    "prelu": lambda x: F.prelu(x, _weights(1)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
}
FULL: dict[str, Call] = {
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs()),
    "pow": lambda x: x**2,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "cumsum": lambda x: x.cumsum(0),
    "sum": lambda x: x.sum(0),
    "prod": lambda x: x.prod(0),
    "norm": lambda x: x.norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x[None], 2),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
    "nll_loss": lambda x: F.nll_loss(F.log_softmax(x, -1), torch.arange(4, device="webgpu")),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x.abs().clamp(max=1)),
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
    "upsample": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", LOWER)
def test_products_take_the_lower_precision(name: str, dtype: torch.dtype) -> None:
    """As float32 inputs rounded to it give."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to("webgpu")
    want = LOWER[name](x)
    with torch.autocast("webgpu", dtype):
        got = LOWER[name](x)
    assert got.dtype is dtype and want.dtype is torch.float32
    bound = 0.02 if dtype is torch.float16 else 0.15
    torch.testing.assert_close(got.float(), want, atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", FULL)
def test_what_overflows_or_cancels_stays_in_float32(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    want = FULL[name](x.float().to("webgpu"))
    with torch.autocast("webgpu", dtype):
        got = FULL[name](x.to("webgpu"))
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, want)


def test_the_rest_follows_its_inputs() -> None:
    half, full = torch.ones(4, dtype=torch.float16, device="webgpu"), torch.ones(4, device="webgpu")
    whole = torch.arange(4, device="webgpu")
    with torch.autocast("webgpu"):
        assert (half + 1).dtype is torch.float16
        assert F.relu(full).dtype is torch.float32
        assert (half + full).dtype is torch.float32
        assert torch.addcmul(half, full, half).dtype is torch.float32  # the widest of them
        assert torch.scatter_add(full, 0, whole, half).dtype is torch.float32
        assert (whole * 2).dtype is torch.int64
        assert half.sum(dtype=torch.float16).dtype is torch.float16  # what the caller says counts
        assert F.softmax(half, 0, dtype=torch.float16).dtype is torch.float16
        with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(full * 0.5, full)


def test_regions_nest_and_end() -> None:
    x = torch.ones(4, 4, device="webgpu")
    assert not torch.is_autocast_enabled("webgpu")
    with torch.autocast("webgpu"):  # float16 without a dtype
        assert torch.is_autocast_enabled("webgpu")
        assert (x @ x).dtype is torch.float16
        with torch.autocast("webgpu", torch.bfloat16):
            assert (x @ x).dtype is torch.bfloat16
        with torch.autocast("webgpu", enabled=False):
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is torch.float16
        assert (x.cpu() @ x.cpu()).dtype is torch.float32  # another device's tensors are not meant
    assert (x @ x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype is torch.float32

    @torch.autocast("webgpu", torch.bfloat16)
    def call(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert call(x).dtype is torch.bfloat16
    with pytest.warns(UserWarning, match="bfloat16"), torch.autocast("webgpu", torch.float32):
        assert (x @ x).dtype is torch.float32


def test_weights_are_converted_once_in_a_region() -> None:
    layer = nn.Linear(64, 64, bias=False).to("webgpu")
    x = torch.ones(2, 64, dtype=torch.float16, device="webgpu")
    with torch.autocast("webgpu"):
        layer(x)
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
        before = torch.webgpu.memory_allocated()  # type: ignore[attr-defined]
        kept = [layer(x) for _ in range(3)]
        grown = torch.webgpu.memory_allocated() - before  # type: ignore[attr-defined]
    assert len(kept) == 3 and grown < 64 * 64 * 2  # three results, no further copy of the weight


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_arrive_in_the_dtype_of_the_parameters(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    twin = copy.deepcopy(model).to("webgpu")
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    F.cross_entropy(model(x), y).backward()
    with torch.autocast("webgpu", dtype):
        loss = F.cross_entropy(twin(x.to("webgpu")), y.to("webgpu"))
    assert loss.dtype is torch.float32
    loss.backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and q.grad.dtype is torch.float32
        torch.testing.assert_close(q.grad.cpu(), p.grad, atol=0.03, rtol=0.1)


def test_recurrent_layers() -> None:
    lstm = nn.LSTM(4, 5).to("webgpu")
    x = torch.randn(3, 2, 4, device="webgpu")
    want, _ = lstm(x)
    with torch.autocast("webgpu"):
        got, _ = lstm(x)
    torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("backend", ["webgpu", "aot_eager"])
def test_compiled(backend: str) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("webgpu", torch.float16):
            y = F.gelu(x @ w)
            return y, F.softmax(y, -1)

    x, w = _weights(4, 8), _weights(8, 8)
    want = step(x, w)
    got = torch.compile(step, backend=backend)(x, w)
    assert [t.dtype for t in got] == [t.dtype for t in want] == [torch.float16, torch.float32]
    for g, e in zip(got, want, strict=True):
        torch.testing.assert_close(g, e, atol=2e-3, rtol=2e-3)


# ---------------------------------------------------------------------------------------------------- GradScaler


def _train(device: str, steps: int, poison: int | None = None) -> tuple[list[float], list[float], torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=3)
    x = torch.linspace(-1, 1, 64).reshape(8, 8).to(device)
    y = x.sum(1, keepdim=True).sin()
    losses: list[float] = []
    scales: list[float] = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if step == poison:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, next(model.parameters()).detach().cpu()


@pytest.mark.parametrize("poison", [None, 4])
def test_grad_scaler_as_on_the_cpu(poison: int | None) -> None:
    before = torch_webgpu.fallbacks()
    losses, scales, weight = _train("webgpu", 9, poison)
    assert torch_webgpu.fallbacks() == before
    want, want_scales, want_weight = _train("cpu", 9, poison)
    assert scales == want_scales
    assert (max(scales) > 1024) and (poison is None or scales[4] < scales[3])
    torch.testing.assert_close(losses, want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(weight, want_weight, atol=1e-4, rtol=1e-4)


def test_training_in_half_precision() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to("webgpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("webgpu")
    x = torch.randn(32, 16, device="webgpu")
    y = x[:, :1] * 0.5 - x[:, 1:2]
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        with torch.autocast("webgpu", torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5


def test_a_step_with_an_infinity_is_skipped() -> None:
    weight = nn.Parameter(torch.ones(3, device="webgpu"))
    other = nn.Parameter(torch.ones(2, device="webgpu"))
    optimizer = torch.optim.SGD([weight, other], lr=1.0)
    scaler = torch.amp.GradScaler("webgpu", init_scale=4.0)
    scaler.scale(weight.sum() + other.sum()).backward()
    assert weight.grad is not None
    weight.grad[1] = float("nan")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert weight.tolist() == [1, 1, 1] and other.tolist() == [1, 1]
    optimizer.zero_grad()
    scaler.scale(weight.sum() + other.sum()).backward()
    scaler.step(optimizer)
    assert weight.tolist() == [0, 0, 0] and other.tolist() == [0, 0]


def test_inverse_scales_are_those_of_float64() -> None:
    """PyTorch inverts the scale in float64; this device in float32."""
    for scale in (1.0, 2.0**16, 2.0**-14, 3.0, 1e4, 65504.0, 0.1, 7e-5):
        scaler = torch.amp.GradScaler("webgpu", init_scale=scale)
        weight = nn.Parameter(torch.ones((), device="webgpu"))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight * 1).backward()
        assert weight.grad is not None
        weight.grad.fill_(1.0)
        scaler.unscale_(optimizer)
        want = torch.tensor(scale).double().reciprocal().float()
        assert weight.grad.cpu() == want, scale


def test_the_state_of_a_scaler_is_kept() -> None:
    scaler = torch.amp.GradScaler("webgpu", init_scale=8.0, growth_interval=2)
    weight = nn.Parameter(torch.ones(3, device="webgpu"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    state: dict[str, Any] = scaler.state_dict()
    assert state["scale"] == 16.0 and state["_growth_tracker"] == 1
    other = torch.amp.GradScaler("webgpu")
    other.load_state_dict(state)
    assert other.get_scale() == 16.0
    other.scale(weight.sum())
    assert other.state_dict() == state
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 16.0
    other.update(new_scale=3.0) if other._scale is not None else None
    assert other.get_scale() == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ops_of_the_scaler(dtype: torch.dtype) -> None:
    grads = [torch.tensor([1.0, -3.0], dtype=dtype), torch.tensor(8.0, dtype=dtype), torch.empty(0, dtype=dtype)]
    for bad in (None, float("inf"), float("-inf"), float("nan")):
        given = [g.clone() for g in grads] + ([torch.tensor([[bad, 2.0]], dtype=dtype)] if bad is not None else [])
        ours = [g.to("webgpu") for g in given]
        found = torch.zeros((), device="webgpu")
        torch._amp_foreach_non_finite_check_and_unscale_(ours, found, torch.tensor(0.25, device="webgpu"))
        assert found.item() == (bad is not None)
        for g, o in zip(given, ours, strict=True):
            assert torch.equal((g * 0.25).nan_to_num(), o.cpu().nan_to_num())
        torch._amp_foreach_non_finite_check_and_unscale_(ours[:1], found, torch.tensor(1.0, device="webgpu"))
        assert found.item() == (bad is not None)  # it is never taken back
    with pytest.raises(RuntimeError, match="found_inf must be one float32"):
        torch._amp_foreach_non_finite_check_and_unscale_(
            [torch.ones(1, device="webgpu")], torch.zeros(2, device="webgpu"), torch.ones(1, device="webgpu")
        )


def test_a_scale_does_not_grow_beyond_float32() -> None:
    scale, tracker = torch.tensor([3e38], device="webgpu"), torch.tensor([0], dtype=torch.int32, device="webgpu")
    torch._amp_update_scale_(scale, tracker, torch.zeros(1, device="webgpu"), 2.0, 0.5, 1)
    assert scale.item() == torch.tensor(3e38).item() and tracker.item() == 0
