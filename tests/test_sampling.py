"""Sampling of tokens: distributions against those worked out on the CPU, limits, edge cases, errors, tracing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from torch_webgpu.llm.sampling import sample

DEVICES = ("cpu", "webgpu")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ROWS = 4000
NAN, INF = float("nan"), float("inf")


def seeded(device: str, seed: int = 7) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def logits_of(n: int, seed: int = 3) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)) * 2


def expected(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """Probabilities by the definition, in float64, token by token."""
    p = torch.softmax(logits.double() / temperature, 0)
    order = sorted(range(len(p)), key=lambda i: -float(p[i]))[: top_k or len(p)]
    p = p / sum(p[i] for i in order)
    kept, total = torch.zeros_like(p), 0.0
    for i in order:
        if total < (top_p or 1.0):
            kept[i] = p[i]
        total += float(p[i])
    return kept / kept.sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, None, None),
        (0.7, 5, None),
        (1.3, None, 0.8),
        (1.0, 9, 0.7),
        (2.0, 100, 1.0),
        (0.01, None, None),
        (1.0, 3, 1e-9),
    ],
)
def test_distribution(device: str, temperature: float, top_k: int | None, top_p: float | None) -> None:
    logits = logits_of(37)
    p = expected(logits, temperature, top_k, top_p)
    rows = logits.expand(ROWS, -1).to(device)
    tokens = sample(rows, temperature, top_k, top_p, seeded(device))
    assert tokens.dtype == torch.int64 and tokens.shape == (ROWS,) and tokens.device.type == device
    counts = torch.bincount(tokens.cpu(), minlength=37).double()
    assert counts[p == 0].sum() == 0
    common = p * ROWS >= 5
    seen = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([p[common], p[~common].sum()[None]]) * ROWS
    if wanted[-1] < 5:  # too rare to count: joined to the likeliest
        at = int(wanted.argmax())
        seen[at], wanted[at] = seen[at] + seen[-1], wanted[at] + wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    if len(seen) > 1:
        assert stats.chisquare(seen.numpy(), wanted.numpy() * float(seen.sum() / wanted.sum())).pvalue > 1e-4
    else:
        assert seen[0] == ROWS


@pytest.mark.parametrize("top_p", [0.3, 0.95])
def test_rows_differ(top_p: float) -> None:
    """Every row has its own distribution; a wide one, beyond one workgroup of sorting."""
    base = torch.full((3, 5000), -20.0)
    for row, token in enumerate((17, 4999, 0)):
        base[row, token] = 30.0
    assert sample(base.to("webgpu"), 1.0, None, top_p, seeded("webgpu")).tolist() == [17, 4999, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_reproducible(device: str) -> None:
    rows = logits_of(1000).expand(64, -1).to(device)
    first = sample(rows, 1.0, 50, 0.9, seeded(device, 1))
    assert torch.equal(first, sample(rows, 1.0, 50, 0.9, seeded(device, 1)))
    assert not torch.equal(first, sample(rows, 1.0, 50, 0.9, seeded(device, 2)))
    torch.manual_seed(5)
    default = sample(rows)
    torch.manual_seed(5)
    assert torch.equal(default, sample(rows))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_greedy(device: str, dtype: torch.dtype) -> None:
    rows = torch.stack([logits_of(999, s) for s in range(3)]).to(dtype)
    rows[2, 5] = rows[2, 400] = 100.0  # of equal ones the first
    want = rows.argmax(1).tolist()
    assert want[2] == 5
    for arguments in ((0.0,), (0, 10, 0.5), (1.5, 1), (1e-9,), (1.0, None, 1e-9)):
        tokens = sample(rows.to(device), *arguments).tolist()
        assert tokens[:2] == want[:2] and (tokens[2] == 5 or (arguments[0] == 1.0 and tokens[2] == 400))


@pytest.mark.parametrize("device", DEVICES)
def test_extreme_logits(device: str) -> None:
    rows = torch.tensor([[-INF, 3.0, -INF], [1e30, -1e30, 0.0], [-INF, -INF, -3e38], [60000.0, 0.0, 0.0]]).to(device)
    for top_k, top_p in ((None, None), (2, None), (None, 0.5), (3, 0.9)):
        for temperature in (1e-5, 1.0, 100.0):
            assert sample(rows, temperature, top_k, top_p, seeded(device)).tolist() == [1, 0, 2, 0]
    assert sample(rows[:0], 1.0, 2, 0.5).shape == (0,)
    assert sample(rows[:0], 0.0).shape == (0,)
    assert sample(torch.zeros(2, 1, device=device)).tolist() == [0, 0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arguments", [(0.0,), (1.0,), (1.0, 3), (1.0, None, 0.5), (0.8, 4, 0.9)])
def test_nan_is_an_error(device: str, arguments: tuple[Any, ...]) -> None:
    for row, column in ((0, 0), (1, 6), (2, 9)):
        rows = logits_of(10).expand(3, -1).clone()
        rows[row, column] = NAN
        with pytest.raises(RuntimeError, match="NaN"):
            sample(rows.to(device), *arguments).cpu()
        good = sample(logits_of(10).expand(3, -1).to(device), *arguments).cpu()  # the error is over
        assert ((good >= 0) & (good < 10)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [INF, -INF])
def test_no_distribution_is_an_error(device: str, value: float) -> None:
    rows = torch.full((2, 10), -1.0)
    rows[1] = value
    for top_k, top_p in ((None, None), (4, None), (None, 0.5)):
        with pytest.raises(RuntimeError, match="no token can be chosen"):
            sample(rows.to(device), 1.0, top_k, top_p).cpu()


def test_wrong_arguments() -> None:
    good = torch.zeros(1, 4)
    for temperature in (-0.1, NAN, INF):
        with pytest.raises(ValueError, match="temperature"):
            sample(good, temperature)
    for top_k in (0, -1):
        with pytest.raises(ValueError, match="top_k"):
            sample(good, 1.0, top_k)
    for top_p in (0.0, -0.5, 1.01, NAN):
        with pytest.raises(ValueError, match="top_p"):
            sample(good, 1.0, None, top_p)
    for logits in (torch.zeros(4), torch.zeros(1, 2, 3), torch.zeros(2, 0), torch.zeros(1, 4, dtype=torch.int64)):
        with pytest.raises(ValueError, match="logits"):
            sample(logits)


def test_traces_without_the_host() -> None:
    """A graph of it has no op that reads a value back, and computes the same."""
    rows = logits_of(100).expand(8, -1).to("webgpu")
    graph = make_fx(lambda x: sample(x, 0.9, 20, 0.9))(rows)
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert "webgpu.raise_where.default" in called
    assert not called & {"aten._local_scalar_dense.default", "aten.item.default", "aten.nonzero.default"}
    torch.manual_seed(1)
    eager = sample(rows, 0.9, 20, 0.9)
    torch.manual_seed(1)
    assert torch.equal(graph(rows), eager)


def test_raise_where() -> None:
    x = torch.arange(6, dtype=torch.float16, device="webgpu").view(2, 3).t()
    flags = torch.tensor([[True, False], [False, False]], device="webgpu")
    out = torch.ops.webgpu.raise_where(x, flags[:, 1], "never")
    assert torch.equal(out.cpu(), x.cpu()) and out.data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match=r"what \(it\) is"):
        torch.ops.webgpu.raise_where(x, flags[:, 0], "what {it} is").cpu()
    for device in DEVICES:
        with pytest.raises(RuntimeError, match="must be bool or float"):
            torch.ops.webgpu.raise_where(x.to(device), flags.to(device).int(), "wrong")
        numbers = torch.tensor([1.0, math.inf, -math.inf], device=device)
        assert torch.ops.webgpu.raise_where(numbers, numbers, "never").tolist() == numbers.tolist()
        with pytest.raises(RuntimeError, match="one is NaN"):
            torch.ops.webgpu.raise_where(x.to(device), numbers - numbers, "one is NaN").cpu()
    assert math.isclose(float(torch.ops.webgpu.raise_where(torch.tensor(2.5), torch.tensor(False), "no")), 2.5)
