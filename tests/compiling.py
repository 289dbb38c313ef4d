"""What the tests of the compiler share: compiled functions against eager ones, graphs and steps between passes, layers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from stage import LIMITED
from torch import fx

from torch_webgpu.compiler import backend, executor, lower
from torch_webgpu.compiler.ir import Module

DEVICE = "webgpu"
LEVELS = ("none", "pointwise", "full")
# Without fusion, a plan has the kernels of the ops one by one: what they do under the smallest limits is for tests of ops.
TRIED = LEVELS[1:] if LIMITED else LEVELS
F32, F16 = torch.float32, torch.float16
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
Function = Callable[..., Any]
Inputs = tuple[torch.Tensor, ...]


at_every_level = pytest.mark.parametrize("level", TRIED, indirect=True)


@pytest.fixture(autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fusion level of the test: ``full``, unless it is run at every one."""
    torch._dynamo.reset()
    name = getattr(request, "param", "full")
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=name))
    return str(name)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def same(got: Any, want: Any, tolerance: float = 0.0) -> None:
    """Results of one structure, dtypes and values."""
    have, expected = tensors(got), tensors(want)
    assert len(have) == len(expected)
    for x, y in zip(have, expected, strict=True):
        assert x.device.type == DEVICE
        torch.testing.assert_close(x.detach().cpu(), y.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)


def check(
    function: Function, *bases: torch.Tensor, place: Function | None = None, calls: int = 2, tolerance: float = 0.0
) -> None:
    """Compiled on the device and eager on the CPU: results, the bases afterwards, and what a write to each result changes.

    Args:
        bases: storages, one a tensor.
        place: makes the arguments from the bases; the bases themselves where it is missing.
    """
    compiled = torch.compile(function, backend="webgpu")
    for _ in range(calls):
        here, there = [b.clone() for b in bases], [b.to(DEVICE, copy=True) for b in bases]
        want = function(*(place(*here) if place else here))
        got = compiled(*(place(*there) if place else there))
        same([got, there], [want, here], tolerance)
    for x, y in zip(tensors(got), tensors(want), strict=True):
        if y.numel() and not y.is_inference() and all(s or n == 1 for n, s in zip(y.shape, y.stride(), strict=True)):
            for t in (x, y):
                t.logical_not_() if t.dtype is torch.bool else t.neg_()
            same([got, there], [want, here], tolerance)


def noise(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape))).to(dtype)


def at_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=level))


def run(
    function: Function, inputs: Inputs, level: str, monkeypatch: pytest.MonkeyPatch, tolerance: float = 1e-5
) -> list[Any]:
    """Compiles, compares with the CPU, and returns the launches of the plan."""
    at_level(level, monkeypatch)
    first = len(backend.compiled)
    there = [x.to(DEVICE, copy=True) for x in inputs]
    here = [x.clone() for x in inputs]
    with torch.no_grad():
        got, want = torch.compile(function, backend="webgpu")(*there), function(*here)
    for x, y in zip(tensors([got, there]), tensors([want, here]), strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=tolerance, atol=tolerance)
    (graph,) = backend.compiled[first:]
    (plan,) = graph.plans
    assert len(plan.dispatches) == len(plan.recipe[2])
    return plan.dispatches


def traced(function: Function, *inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> fx.GraphModule:
    """The ATen graph that the passes get."""
    at_level("none", monkeypatch)
    with torch.no_grad():
        torch.compile(function, backend="webgpu")(*[x.to(DEVICE, copy=True) for x in inputs])
    return backend.compiled[-1].source


def count(module: fx.GraphModule, target: Any) -> int:
    return sum(n.target is target for n in module.graph.nodes)


def lowered(function: Function, *inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Module:
    """The steps before the passes on them, of the graph after those on it."""
    at_level("full", monkeypatch)
    found: list[Module] = []

    def spy(module: fx.GraphModule, metas: Any) -> Module:
        found.append(lower.lower(module, metas))
        return lower.lower(module, metas)

    monkeypatch.setattr(executor, "lower", spy)
    with torch.no_grad():
        torch.compile(function, backend="webgpu")(*[x.to(DEVICE, copy=True) for x in inputs])
    monkeypatch.setattr(executor, "lower", lower.lower)
    return found[-1]


def kinds(module: Module) -> Counter[str]:
    return Counter(type(step).__name__ for step in module.steps)


# ---------------------------------------------------------------------------------------------------- layers


def rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def wide_rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-high, low), -1) * sin


def repeated(x: torch.Tensor, n: int) -> torch.Tensor:
    b, h, length, d = x.shape
    return x[:, :, None].expand(b, h, n, length, d).reshape(b, h * n, length, d)


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def chunked(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, g = F.linear(x, w, b).chunk(2, -1)
    return a * F.gelu(g)


ROW, GAIN, W, V, B = noise(1, 64), noise(64), noise(32, 64) / 8, noise(32, 64, seed=1) / 8, noise(32)
HEADS = tuple(noise(1, 4, 5, 16, seed=s) for s in range(3))
FEW = tuple(noise(1, 2, 5, 16, seed=s) for s in range(2))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
NORMED: Function = lambda x, g, b: F.layer_norm(x, (64,), g, b)  # noqa: E731
