"""Run in a process of its own (test_pieces.py): every op on tensors larger than a storage binding may cover.

The binding's limit is taken down to 64 KiB before the device is made, so that small tensors exceed it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import torch_webgpu
from torch_webgpu import runtime

LIMIT = 64 << 10
Case = tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]


def lower_the_limit() -> None:
    """Both sides: what lowerings look at, and what the native core enforces."""
    attach = runtime._C.attach
    runtime._C.attach = lambda *args: attach(*args[:-1], LIMIT)  # type: ignore[assignment,call-arg]
    runtime.device().limits["maxStorageBufferBindingSize"] = LIMIT


def cases() -> list[Case]:
    """(name, function of device tensors, CPU tensors)."""
    torch.manual_seed(0)
    x = torch.randn(300, 131)
    image = torch.randn(6, 3, 40, 41)
    ties = torch.randint(0, 50, (40000,))
    ties[7777] = ties[33333] = 99
    index = torch.randint(0, 300, (300, 131))
    w, b = torch.randn(131), torch.randn(131)
    k, kb, c = torch.randn(5, 3, 3, 3), torch.randn(5), torch.rand(3) + 0.5
    with_nan = x.clone()
    with_nan[200, 100] = float("nan")

    def batch_norm(t: torch.Tensor, scale: torch.Tensor) -> Any:
        mean, variance = torch.zeros_like(scale), torch.ones_like(scale)
        return F.batch_norm(t, mean, variance, scale, scale, training=True), mean, variance

    def gradients(t: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        leaves = [v.detach().requires_grad_() for v in (t, weight, bias)]
        out = F.max_pool2d(F.conv2d(leaves[0], leaves[1], leaves[2], padding=1), 2)
        (out * out).sum().backward()
        return [v.grad for v in leaves]

    return [
        ("argmax", lambda t: t.argmax(), (x,)),
        ("argmax of ties", lambda t: (t.argmax(), t.view(200, 200).t().argmax()), (ties,)),
        ("argmin along a dimension", lambda t: (t.argmin(0), t.argmin(1, keepdim=True)), (x,)),
        ("max along a dimension", lambda t: (*t.max(0), *t.min(1)), (x,)),
        ("argmax with NaN", lambda t: t.argmax(), (with_nan,)),
        ("argmax of half", lambda t: t.argmax(1), (torch.randn(20000, 2).half(),)),
        ("variance", lambda t: (t.var(), *torch.std_mean(t, 0), t.var(1, correction=0)), (x,)),
        ("layer_norm", lambda t, v, u: F.layer_norm(t, (131,), v, u), (x, w, b)),
        ("rms_norm", lambda t, v: F.rms_norm(t, (131,), v), (x, w)),
        ("group_norm", lambda t: F.group_norm(t, 3), (image,)),
        ("batch_norm", batch_norm, (image, c)),
        ("batch_norm in evaluation", lambda t, v: F.batch_norm(t, v, v, v, v), (image, c)),
        ("conv2d", lambda t, v, u: F.conv2d(t, v, u, padding=1), (image, k, kb)),
        ("conv1d", lambda t, v: F.conv1d(t, v), (torch.randn(9, 4, 600), torch.randn(3, 4, 5))),
        ("conv2d and pooling, gradients", gradients, (image, k, kb)),
        ("max_pool2d", lambda t: F.max_pool2d(t, 3, 2, 1, return_indices=True), (image,)),
        ("avg_pool2d", lambda t: (F.avg_pool2d(t, 2), F.adaptive_avg_pool2d(t, 5)), (image,)),
        ("interpolate", lambda t: F.interpolate(t, scale_factor=2.0, mode="bilinear"), (image,)),
        ("cumsum", lambda t: (t.cumsum(0), t.cumsum(1)), (x,)),
        ("cummax", lambda t: t.cummax(1), (x,)),
        ("sort", lambda t: t.sort(1, descending=True), (x,)),
        ("stable sort", lambda t: t.sort(dim=0, stable=True), (x,)),
        ("topk", lambda t: t.topk(5, 1), (x,)),
        ("kthvalue, median", lambda t: (*t.kthvalue(9, 1), t.median(0).values), (x,)),
        ("gather", lambda t, i: t.gather(0, i), (x, index)),
        (
            "scatter",
            lambda t, i: (t.scatter(0, i[:1], 2.0), t.scatter_add(0, i, t), t.clone().scatter_add_(0, i, t)),
            (x, index),
        ),
        ("embedding", lambda i, t: F.embedding(i, t), (index[:, :60], torch.randn(300, 3))),
        ("softmax", lambda t: t.softmax(0), (x,)),
        ("tril", lambda t: t.tril(), (torch.randn(5, 80, 90),)),
        ("attention", F.scaled_dot_product_attention, tuple(torch.randn(3, 4, 60, 32) for _ in range(3))),
    ]


def too_long() -> list[tuple[str, Callable[[torch.Tensor], Any]]]:
    """Ops that cannot be cut any further on one row of 40 000 elements."""
    return [
        ("layer_norm", lambda t: F.layer_norm(t, (40000,))),
        ("cumsum", lambda t: t.cumsum(1)),
        ("sort", lambda t: t.sort(1)),
        ("softmax", lambda t: t.softmax(1)),
    ]


def check(names: list[str]) -> None:
    """Compares with the CPU; raises on the first difference."""
    for name, function, inputs in cases():
        if names and name not in names:
            continue
        try:
            got = function(*[t.to("webgpu") for t in inputs])
        except Exception as e:
            raise AssertionError(f"{name}: {e}") from e
        wanted = function(*inputs)
        pairs = zip(got, wanted, strict=True) if isinstance(got, (tuple, list)) else [(got, wanted)]
        for a, b in pairs:
            torch.testing.assert_close(a.cpu(), b, rtol=2e-4, atol=2e-4, msg=f"{name}: {{}}".format)
    for name, function in too_long():
        if names and name not in names:
            continue
        for rows in (1, 2):
            t = torch.randn(rows, 40000).to("webgpu")
            try:
                function(t)
                torch.webgpu.synchronize()  # type: ignore[attr-defined]
            except torch_webgpu.LimitError as e:
                assert str(LIMIT) in str(e), e
            else:
                raise AssertionError(f"{name}: a row beyond the limit raised nothing")


def check_random() -> None:
    """A large fill gives the numbers of small ones in a row; a strided one that cannot be cut says so."""
    for dtype, fill in ((torch.float32, "normal_"), (torch.float16, "uniform_"), (torch.int64, "random_")):
        torch.manual_seed(3)
        large = getattr(torch.empty(400, 150, dtype=dtype, device="webgpu"), fill)()
        torch.manual_seed(3)
        small = [getattr(torch.empty(6000, dtype=dtype, device="webgpu"), fill)() for _ in range(10)]
        assert torch.equal(large.flatten().cpu(), torch.cat([t.cpu() for t in small])), fill
    base = torch.zeros(400, 150, device="webgpu")
    torch.manual_seed(3)
    base.t().normal_()
    torch.manual_seed(3)
    assert torch.equal(base.t().cpu(), torch.randn(150, 400, device="webgpu").cpu())
    with torch.no_grad():
        dropped = torch.nn.functional.dropout(torch.ones(400, 150, device="webgpu"), 0.25)
    assert 0.7 < dropped.bool().float().mean().item() < 0.8


if __name__ == "__main__":
    lower_the_limit()
    check(sys.argv[1:])
    check_random()
