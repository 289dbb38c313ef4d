"""Attention of one query row over a static cache: rotary embedding, update in place, masks; against float64 formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from torch_webgpu import runtime
from torch_webgpu.kernels.decode_attention import SHORT, Rope, decode_attention
from torch_webgpu.recipe import Graph, Tensor
from torch_webgpu.registry import lower

DEVICE = "webgpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define(
    "test_decode_attention(Tensor q, Tensor? k, Tensor? v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor(c!) out, "
    "Tensor? position, Tensor? mask, Tensor? cos, Tensor? sin, float scale) -> Tensor(c!)"
)


@lower("webgpu::test_decode_attention")
def _lowered(graph: Graph, *args: Any) -> Tensor:
    q, k, v, k_cache, v_cache, out, position, mask, cos, sin, scale = args
    rope = None if cos is None else Rope(cos, sin)
    decode_attention(graph, q, k, v, k_cache, v_cache, out, position=position, mask=mask, scale=scale, rope=rope)
    return out


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU adapters have tiles of their own, one launch and a head a workgroup."""
    device = runtime.device()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, kind="discrete"))


class Step:
    """One decode step: operands on the CPU, and what they give in float64."""

    def __init__(
        self,
        heads: int,
        groups: int,
        slots: int,
        dim: int,
        position: int,
        dtype: torch.dtype,
        batch: int = 1,
        rope: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(slots * 1000 + dim)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.q, self.k, self.v = noise(batch, heads, 1, dim), noise(batch, groups, 1, dim), noise(batch, groups, 1, dim)
        self.caches = [noise(batch, groups, slots, dim) for _ in range(2)]
        for cache in self.caches:
            cache[:, :, position:] = 1e4  # slots not written yet hold garbage
        angle = torch.rand(batch, 1, dim // 2 if rope else 1, generator=generator) * 6
        self.cos, self.sin = (torch.cat([f(angle)] * 2, -1) if rope else None for f in (torch.cos, torch.sin))
        self.position, self.scale, self.dtype = position, dim**-0.5, dtype

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        x = x.double()
        if self.cos is None or self.sin is None:
            return x
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * self.cos.double().unsqueeze(1) + turned * self.sin.double().unsqueeze(1)

    def expected(self, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The result, and the caches afterwards."""
        caches = [c.clone() for c in self.caches]
        caches[0][:, :, self.position] = self._rotated(self.k)[:, :, 0].to(self.dtype)
        caches[1][:, :, self.position] = self.v[:, :, 0]
        repeat = self.q.shape[1] // self.k.shape[1]
        keys, values = (c.double().repeat_interleave(repeat, 1) for c in caches)
        scores = self._rotated(self.q) @ keys.transpose(-1, -2) * self.scale
        if mask is None:
            mask = torch.arange(keys.shape[2]) <= self.position
        on = mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min
        bias = torch.zeros(()) if mask.dtype is torch.bool else mask.double().masked_fill(~on, 0.0)
        weights = (scores + bias).masked_fill(~on, -torch.inf).softmax(-1).nan_to_num(0.0)
        return weights @ values, caches

    def run(self, mask: torch.Tensor | None = None, *, place: Any = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The same on the device; ``place`` lays a tensor out there (default: contiguous)."""
        put = place or (lambda t: t.to(DEVICE))
        b, h, _, d = self.q.shape
        out = torch.full((b, 1, h, d), 7.0, dtype=self.dtype, device=DEVICE).transpose(1, 2)
        caches = [put(c) for c in self.caches]
        rope = [None if t is None else t.to(DEVICE) for t in (self.cos, self.sin)]
        position = torch.tensor([self.position], device=DEVICE)
        torch.ops.webgpu.test_decode_attention(
            put(self.q), put(self.k), put(self.v), *caches, out, position, mask, *rope, self.scale
        )
        return out.cpu(), [c.cpu() for c in caches]

    def check(self, mask: torch.Tensor | None = None, *, place: Any = None) -> None:
        got, caches = self.run(None if mask is None else mask.to(DEVICE), place=place)
        want, after = self.expected(mask)
        tolerance = TOLERANCE[self.dtype]
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
        for have, cache in zip(caches, after, strict=True):
            rows = torch.arange(have.shape[2]) != self.position
            assert torch.equal(have[:, :, rows], cache[:, :, rows])
            torch.testing.assert_close(have, cache, rtol=tolerance, atol=tolerance)


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LONG = SHORT + 171  # two launches, and a last tile that is not full


@pytest.mark.parametrize("rows", (True, False))
@pytest.mark.parametrize(
    ("heads", "groups", "slots", "dim", "dtype", "rope"),
    (
        (7, 7, 67, 64, F32, True),
        (4, 2, SHORT, 80, F16, True),
        (14, 2, LONG, 64, F32, True),
        (7, 1, LONG, 128, F16, False),
        (8, 1, LONG, 96, BF16, True),
        (2, 1, SHORT + 1, 256, F32, True),
        (2, 2, 33, 37, F16, False),
    ),
)
def test_positions(
    heads: int,
    groups: int,
    slots: int,
    dim: int,
    dtype: torch.dtype,
    rope: bool,
    rows: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a workgroup a row where the cache's layout and length allow it, and in tiles."""
    if not rows:
        monkeypatch.setattr("torch_webgpu.kernels.decode_row.LONGEST", 0)
    for position in sorted({0, 16, 31, 32, slots - 1}):
        if position < slots:
            Step(heads, groups, slots, dim, position, dtype, rope=rope).check()


def test_many_keys() -> None:
    for position in (255, 256, 1000, 1299):
        Step(14, 2, 1300, 64, position, F32).check()
        Step(4, 4, 1300, 128, position, BF16).check()


def test_many_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_webgpu.kernels.decode_row.LONGEST", 0)
    for position in (40, 1250, 1299):
        Step(14, 2, 1300, 64, position, F32).check()
    monkeypatch.setattr("torch_webgpu.kernels.decode_attention.SPREAD", 6)  # three workgroups walk all tiles
    for position in (40, 298):
        Step(14, 2, 301, 64, position, F32).check()


def test_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = runtime.device()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, kind="cpu"))
    for position in (0, 15, 16, 70, 138):
        Step(6, 2, 139, 64, position, F32).check()
        Step(2, 2, 139, 80, position, F16).check()


def _masks(step: Step, kind: str) -> torch.Tensor:
    b, h, slots = step.q.shape[0], step.q.shape[1], step.caches[0].shape[2]
    generator = torch.Generator().manual_seed(5)
    on = torch.rand(b, 1 if kind == "bool" else h, 1, slots, generator=generator) < 0.6
    on &= torch.arange(slots) <= step.position
    on[..., 32:64] = False  # a tile without keys
    if kind == "bool":
        on[0] = False  # a row without keys
        return on
    on[..., step.position] = True
    lowest = -torch.inf if kind == "inf" else torch.finfo(step.dtype).min
    bias = torch.randn(on.shape, generator=generator).to(step.dtype)
    return bias.masked_fill(~on, lowest)


@pytest.mark.parametrize("kind", ("bool", "inf", "lowest"))
@pytest.mark.parametrize(("slots", "dtype"), ((71, F32), (LONG, F16)))
def test_masks(kind: str, slots: int, dtype: torch.dtype) -> None:
    step = Step(4, 2, slots, 64, 70, dtype, batch=2)
    step.check(_masks(step, kind))


def test_mask_of_lowest_numbers_alone_is_a_mean() -> None:
    step = Step(2, 1, 70, 64, 69, F32)
    mask = torch.full((1, 1, 1, 70), torch.finfo(F32).min)
    got, caches = step.run(mask.to(DEVICE))
    torch.testing.assert_close(got, caches[1].mean(2, keepdim=True).expand(1, 2, 1, 64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", (F32, F16))
def test_strided_operands(dtype: torch.dtype) -> None:
    def interleaved(t: torch.Tensor) -> torch.Tensor:  # heads beside each other, as projections leave them
        return t.transpose(1, 2).contiguous().to(DEVICE).transpose(1, 2)

    def odd(t: torch.Tensor) -> torch.Tensor:  # elements apart, rows that begin inside of words
        base = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 1), 1e4, dtype=t.dtype)
        base[..., 1::2] = t
        return base.to(DEVICE)[..., 1::2]

    for place in (interleaved, odd):
        Step(4, 2, 71, 64, 69, dtype, batch=2).check(place=place)


def test_position_out_of_range() -> None:
    for position in (67, -1):
        step = Step(2, 2, 67, 64, 40, F32)
        step.position = position
        before = [c.clone() for c in step.caches]
        after = [c.to(DEVICE) for c in before]
        out = torch.empty(1, 2, 1, 64, device=DEVICE)
        operands = [t.to(DEVICE) for t in (step.q, step.k, step.v)]
        with pytest.raises(IndexError, match=f"position {position} is out of bounds for a cache of 67 slots"):
            torch.ops.webgpu.test_decode_attention(
                *operands, *after, out, torch.tensor([position], device=DEVICE), None, None, None, 1.0
            )
            torch.webgpu.synchronize()  # type: ignore[attr-defined]
        assert all(torch.equal(a.cpu(), b) for a, b in zip(after, before, strict=True))


def test_cache_is_only_read() -> None:
    step = Step(4, 2, LONG, 64, LONG, F32, rope=False)
    q, *caches = (t.to(DEVICE) for t in (step.q, *step.caches))
    out = torch.empty_like(q)
    torch.ops.webgpu.test_decode_attention(q, None, None, *caches, out, None, None, None, None, step.scale)
    keys, values = (c.double().repeat_interleave(2, 1) for c in step.caches)
    want = (step.q.double() @ keys.transpose(-1, -2) * step.scale).softmax(-1) @ values
    torch.testing.assert_close(out.cpu().double(), want, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(caches, step.caches, strict=True))


def test_within_small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = runtime.device().limits
    monkeypatch.setitem(limits, "maxStorageBuffersPerShaderStage", 8)
    monkeypatch.setitem(limits, "maxStorageBufferBindingSize", 2 * 75 * 64 * 4 + 256)  # two heads of a cache
    step = Step(4, 2, 75, 64, 70, F32, batch=3)
    step.check(_masks(step, "bool"))
    monkeypatch.setitem(limits, "maxStorageBufferBindingSize", 4096)
    with pytest.raises(RuntimeError, match="exceeds the largest storage binding"):
        Step(4, 2, 77, 64, 70, F32, batch=3).run()


def test_wrong_operands() -> None:
    step = Step(4, 2, 75, 64, 70, F32)
    step.k = step.k[:, :1]
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        step.run()
    step = Step(4, 2, 75, 64, 70, F32)
    step.caches[1] = step.caches[1].half()
    with pytest.raises(RuntimeError, match="one dtype"):
        step.run()


@pytest.mark.parametrize("causal", (False, True))
def test_eager_attention_with_one_query(causal: bool) -> None:
    step = Step(6, 2, LONG, 64, LONG, F16)
    q, k, v = step.q, *step.caches
    there = [t.to(DEVICE) for t in (q, k, v)]
    got = F.scaled_dot_product_attention(there[0], there[1], there[2], is_causal=causal, enable_gqa=True)
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(got.cpu().double(), want, rtol=2e-3, atol=2e-3)
