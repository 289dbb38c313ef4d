"""Quantised weights: the ops against plain PyTorch, the modules, whole models, GGUF files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from torch_webgpu import runtime
from torch_webgpu.compiler.backend import compiled
from torch_webgpu.llm.quant import (
    Kind,
    QuantisedEmbedding,
    QuantisedLinear,
    QuantisedWeight,
    quantise,
)
from torch_webgpu.ops import quantised

OPS = torch.ops.webgpu
DEVICE = "webgpu"
KINDS: tuple[Kind, ...] = ("int8", "int4")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest result


def int8_parts(n: int, k: int, groups: int, scale: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randint(-128, 128, (n, k), dtype=torch.int8), (torch.rand(n, groups) / 64 + 0.001).to(scale)


def int4_parts(n: int, k: int, minimum: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    words = torch.randint(-(2**31), 2**31, (n, k // 8), dtype=torch.int32)
    scale = (torch.rand(n, k // 32) / 8).half()
    return words, scale, torch.randn(n, k // 32).half() if minimum else None


def on_device(*tensors: Tensor | None) -> list[Any]:
    return [None if t is None else t.to(DEVICE) for t in tensors]


def values_int4(words: Tensor, scale: Tensor, minimum: Tensor | None) -> Tensor:
    """The definition, bit by bit, in float64."""
    n, k = words.shape[0], words.shape[1] * 8
    bits = np.frombuffer(words.numpy().tobytes(), np.uint8).reshape(n, -1)
    nibbles = torch.from_numpy(np.stack([bits & 15, bits >> 4], 2).reshape(n, k).astype(np.float64))
    s = scale.double().repeat_interleave(32, 1)
    return (nibbles - 8) * s if minimum is None else nibbles * s + minimum.double().repeat_interleave(32, 1)


def values_int8(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.double() * scale.double().repeat_interleave(weight.shape[1] // scale.shape[1], 1)


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype and got.shape == want.shape
    error = (got.cpu().double() - want).abs().max() / want.abs().max()
    assert error < TOLERANCE[dtype], float(error)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(11)


# ---------------------------------------------------------------------------------------------------- ops


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("lead", "n", "k", "groups"),
    [((1,), 33, 96, 3), ((3, 7), 33, 96, 3), ((4, 2), 7, 63, 7), ((3, 7), 130, 63, 1), ((), 1, 1, 1)],
)
def test_linear_int8(device: str, dtype: torch.dtype, lead: tuple[int, ...], n: int, k: int, groups: int) -> None:
    x = torch.randn(*lead, k).to(dtype)
    weight, scale = int8_parts(n, k, groups, torch.float16 if groups == 3 else torch.float32)
    bias = torch.randn(n).to(dtype)
    want = x.double() @ values_int8(weight, scale).T
    for b, result in ((None, want), (bias, want + bias.double())):
        got = OPS.linear_int8(*(None if t is None else t.to(device) for t in (x, weight, scale, b)))
        close(got, result, dtype)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("lead", "n", "k", "minimum"),
    [((), 33, 96, True), ((2, 2), 64, 32, False), ((13,), 33, 96, True), ((3, 5), 64, 32, False)],
)
def test_linear_int4(device: str, dtype: torch.dtype, lead: tuple[int, ...], n: int, k: int, minimum: bool) -> None:
    x = torch.randn(*lead, k).to(dtype)
    parts = int4_parts(n, k, minimum)
    bias = torch.randn(n).to(dtype)
    want = x.double() @ values_int4(*parts).T
    for b, result in ((None, want), (bias, want + bias.double())):
        close(OPS.linear_int4(*(None if t is None else t.to(device) for t in (x, *parts, b))), result, dtype)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@pytest.mark.parametrize("dtype", FLOATS)
def test_embedding(device: str, dtype: torch.dtype) -> None:
    indices = torch.randint(0, 19, (3, 5))
    for parts, values in (
        (int8_parts(19, 35, 5), values_int8),
        (int8_parts(19, 64, 1, torch.float16), values_int8),
        (int4_parts(19, 64), values_int4),
        (int4_parts(19, 32, False), values_int4),
    ):
        op = OPS.embedding_int8 if len(parts) == 2 else OPS.embedding_int4
        given = [None if t is None else t.to(device) for t in parts]
        want = values(*parts)[indices]
        for kind in (torch.int64, torch.int32):
            got = op(indices.to(kind).to(device), *given, dtype)
            close(got, want, dtype)
        assert op(indices[:0].to(device), *given, dtype).shape == (0, 5, want.shape[-1])
        for wrong in (19, -1, 2**32 + 1):
            with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension with size 19"):
                op(torch.tensor([0, wrong]).to(device), *given, dtype).cpu()


@pytest.mark.parametrize("rows", [1, 9])
def test_strided_operands(rows: int) -> None:
    """x is no contiguous tensor, the weights are parts of larger ones, one starts at an odd place."""
    x = torch.randn(96, rows, device=DEVICE).t()
    weight, scale = int8_parts(50, 96, 3)
    bias = torch.randn(100)[::2]
    big, scales = torch.zeros(60, 130, dtype=torch.int8), torch.zeros(60, 7)
    big[3:53, 17:113], scales[3:53, 2:5] = weight, scale
    got = OPS.linear_int8(x, big.to(DEVICE)[3:53, 17:113], scales.to(DEVICE)[3:53, 2:5], bias.to(DEVICE))
    close(got, x.cpu().double() @ values_int8(weight, scale).T + bias.double(), torch.float32)
    parts = int4_parts(40, 96)
    moved = [torch.cat([t.new_zeros(5, t.shape[1]), t]).to(DEVICE)[5:] for t in parts if t is not None]
    close(OPS.linear_int4(x, *moved, None), x.cpu().double() @ values_int4(*parts).T, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_windows(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Weights beyond a binding, and dequantised in parts: the same as without limits."""
    limits = dict(runtime.device().limits, maxStorageBufferBindingSize=4096)

    class Small:
        def __getattr__(self, name: str) -> Any:
            return limits if name == "limits" else getattr(runtime.device(), name)

    monkeypatch.setattr(quantised, "target", Small)
    monkeypatch.setattr(quantised, "MOST_DEQUANTISED", 2048)
    for k, groups in ((45, 1), (64, 2)):  # of odd length: a word holds elements of two rows
        weight, scale = int8_parts(203, k, groups)
        x, indices = torch.randn(12, k).to(dtype), torch.randint(0, 203, (151,))
        close(OPS.linear_int8(*on_device(x, weight, scale), None), x.double() @ values_int8(weight, scale).T, dtype)
        close(OPS.embedding_int8(*on_device(indices, weight, scale), dtype), values_int8(weight, scale)[indices], dtype)
        with pytest.raises(IndexError, match="index 203 is out of bounds"):
            OPS.embedding_int8(*on_device(torch.tensor([1, 203]), weight, scale), dtype).cpu()


@pytest.mark.parametrize("device", ["cpu", DEVICE, "meta"])
def test_wrong_operands(device: str) -> None:
    weight, scale = (t.to(device) for t in int8_parts(6, 64, 2))
    words, steps, least = (t.to(device) for t in int4_parts(6, 64) if t is not None)
    x = torch.zeros(2, 64, device=device)
    index = torch.zeros(2, dtype=torch.int64, device=device)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: OPS.linear_int8(x[:, :63], weight, scale, None), "64 columns"),
        (lambda: OPS.linear_int8(x, weight, scale[:, :1].repeat(1, 3), None), "cannot be shared out"),
        (lambda: OPS.linear_int8(x, weight, scale[:5], None), "scale must have shape"),
        (lambda: OPS.linear_int8(x.int(), weight, scale, None), "dtype float32"),
        (lambda: OPS.linear_int8(x, weight, scale, x[0, :5]), "bias must have shape"),
        (lambda: OPS.linear_int8(x, weight, scale, x[0, :6].half()), "bias must have shape"),
        (lambda: OPS.linear_int8(x, words, scale, None), "weight must have"),
        (lambda: OPS.linear_int4(x, weight, steps, least, None), "weight must have"),
        (lambda: OPS.linear_int4(x[:, :40], words[:, :5], steps, least, None), "multiple of 32"),
        (lambda: OPS.linear_int4(x, words, steps.float(), least, None), "scale must have shape"),
        (lambda: OPS.linear_int4(x, words, steps, least[:, :1], None), "minimum must have shape"),
        (lambda: OPS.embedding_int8(index.bool(), weight, scale, torch.float32), "indices must be"),
        (lambda: OPS.embedding_int4(index, words, steps, None, torch.int32), "dtype must be float32"),
        (lambda: OPS.embedding_int4(index, words[0], steps, None, torch.float32), "must be matrices"),
    ]
    for call, message in cases:
        with pytest.raises(RuntimeError, match=message):
            call()


def test_no_gradients() -> None:
    weight, scale = on_device(*int8_parts(6, 64, 2))
    x = torch.zeros(2, 64, device=DEVICE, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"dequantise the model to train it .*, or run it under"):
        OPS.linear_int8(x, weight, scale, None).sum().backward()


def test_registration() -> None:
    """PyTorch's own check of custom ops: schema, shapes without data, tracing with dynamic shapes."""
    weight, scale, words, steps, least = on_device(*int8_parts(6, 64, 2), *int4_parts(6, 64))
    x, index = on_device(torch.randn(2, 3, 64), torch.tensor([1, 2]))
    for op, args in (
        (OPS.linear_int8, (x, weight, scale, None)),
        (OPS.linear_int4, (x, words, steps, least, None)),
        (OPS.embedding_int8, (index, weight, scale, torch.float16)),
        (OPS.embedding_int4, (index, words, steps, least, torch.float32)),
        (OPS.raise_where, (index, index > 5, "never")),
    ):
        assert set(torch.library.opcheck(op.default, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("kind", KINDS)
def test_traces_to_single_ops(kind: Kind) -> None:
    table = QuantisedEmbedding.from_embedding(nn.Embedding(20, 64), kind).to(DEVICE)
    model = nn.Sequential(table, QuantisedLinear.from_linear(nn.Linear(64, 20), kind)).to(DEVICE)
    indices = torch.tensor([[1, 2, 3]], device=DEVICE)
    with torch.no_grad():
        graph = make_fx(model, tracing_mode="fake", _allow_non_fake_inputs=True)(indices)
        called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        assert called == [f"webgpu.embedding_{kind}.default", f"webgpu.linear_{kind}.default"]
        assert torch.equal(graph(indices), model(indices))


# ---------------------------------------------------------------------------------------------------- modules


def relative_error(weight: Tensor, kind: Kind) -> float:
    got = QuantisedWeight.from_float(weight, kind).dequantise()
    return float((got - weight).norm() / weight.norm())


def test_rounding() -> None:
    weight = torch.randn(64, 256) * torch.logspace(-3, 2, 64)[:, None]
    q = QuantisedWeight.from_float(weight, "int8")
    assert (q.dequantise() - weight).abs().le(weight.abs().amax(1, keepdim=True) / 127 * 0.5001).all()
    # Plain rounding between the extremes of each group is the baseline.
    g = weight.view(-1, 32)
    low, step = g.amin(1, keepdim=True), (g.amax(1, keepdim=True) - g.amin(1, keepdim=True)) / 15
    plain = float((((g - low) / step).round() * step + low - g).norm() / g.norm())
    assert relative_error(weight, "int4") < 0.95 * plain < 0.1
    exact = torch.arange(16).repeat(4, 6).float() / 4 - 1  # sixteen steps are kept exactly
    assert relative_error(exact, "int4") < 1e-6
    for constant in (0.0, 0.25, -3.0):
        assert torch.equal(
            QuantisedWeight.from_float(torch.full((2, 32), constant), "int4").dequantise()[0, :1], torch.tensor([constant])
        )
    assert torch.equal(QuantisedWeight.from_float(torch.zeros(2, 5), "int8").dequantise(), torch.zeros(2, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_on_the_device_too(kind: Kind) -> None:
    weight = torch.randn(24, 96)
    here, there = QuantisedWeight.from_float(weight, kind), QuantisedWeight.from_float(weight.to(DEVICE), kind)
    assert there.values.device.type == DEVICE
    # Sums in another order may round a step elsewhere; what comes of it is as good.
    a, b = here.dequantise(), there.dequantise().cpu()
    assert (a - weight).norm() == pytest.approx(float((b - weight).norm()), rel=1e-3)
    assert torch.equal(there.to("cpu").dequantise(), b)


class Siblings(nn.Module):
    """Layers over one input, as queries, keys and values are."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(2048, n) for n in (2048, 512, 512))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x).softmax(-1), self.k(x).softmax(-1), self.v(x).softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_siblings_quantised_on_the_device(kind: Kind) -> None:
    """They share a launch, and quantising keeps no memory for what it worked with."""
    torch._dynamo.reset()
    torch.webgpu.empty_cache()  # type: ignore[attr-defined]
    before = torch.webgpu.memory_reserved()  # type: ignore[attr-defined]
    model = quantise(Siblings().to(DEVICE).eval(), kind)
    kept = sum(t.nbytes for t in model.buffers()) + 4 * 2048 * 2
    assert torch.webgpu.memory_reserved() - before < 1.5 * kept  # type: ignore[attr-defined]
    x = torch.randn(1, 2048, device=DEVICE)
    with torch.no_grad():
        expected = model(x)
        got = torch.compile(model, backend="webgpu", fullgraph=True)(x)
    assert [d.name for d in compiled[-1].plans[-1].dispatches if "linear" in d.name] == ["linear x3"]
    for a, b in zip(got, expected, strict=True):
        close(a, b.cpu().double(), torch.float32)


def test_weights_that_cannot_be_quantised() -> None:
    for weight, kind, message in (
        (torch.zeros(4, 40), "int4", "40 columns are no multiple of 32"),
        (torch.full((4, 32), 1e6), "int4", "largest magnitude is 1000000"),
        (torch.full((4, 32), float("nan")), "int8", "largest magnitude is nan"),
        (torch.full((4, 32), float("inf")), "int8", "largest magnitude is inf"),
        (torch.zeros(4), "int8", "no matrix"),
        (torch.zeros(4, 32), "int3", "int8 or int4, not 'int3'"),
    ):
        with pytest.raises(ValueError, match=message):
            QuantisedWeight.from_float(weight, kind)  # type: ignore[arg-type]


class Tied(nn.Module):
    """An embedding, a block with a layer that does not fit 4 bits, and a head that shares the embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.block = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 64, bias=False))
        self.other = nn.Embedding(50, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, indices: Tensor) -> Tensor:
        return self.head(self.block(self.table(indices)) + self.other(indices))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_model(kind: Kind, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    model = cast(Any, Tied().eval())
    indices = torch.arange(50).view(2, 25)
    before = model(indices)
    with caplog.at_level(logging.WARNING):
        unchanged = quantise(model, kind) is model  # inside the assertion it would narrow the type
    assert unchanged
    skipped = [r.getMessage() for r in caplog.records]
    assert skipped == ([] if kind == "int8" else ["not quantised to int4: block.2 (its 40 columns are no multiple of 32)"])
    assert isinstance(model.block[0], QuantisedLinear) and type(model.other) is nn.Embedding
    assert isinstance(model.block[2], nn.Linear) == (kind == "int4")
    assert model.head.quantised is model.table.quantised
    assert f"kind={kind}" in repr(model) and "bits a weight" in repr(model)
    after = model(indices)
    assert 0 < (after - before).norm() / before.norm() < (0.02 if kind == "int8" else 0.2)

    other = cast(Any, quantise(Tied(), kind))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(other(indices), after)
    model.to(DEVICE)
    assert model.head.quantised is model.table.quantised and model.table.quantised.values.device.type == DEVICE
    with torch.no_grad():
        close(model(indices.to(DEVICE)), after.double(), torch.float32)
        half = model.half()  # scales stay as they are
        assert half.table.quantised.scale.dtype == (torch.float32 if kind == "int8" else torch.float16)
        close(half(indices.to(DEVICE)), after.double(), torch.float16)
    plain = other.block[0].dequantise()
    x = torch.randn(3, 64)
    assert torch.allclose(plain(x), other.block[0](x), atol=1e-6) and type(plain) is nn.Linear
    assert torch.equal(other.table.dequantise()(indices), other.table(indices))
