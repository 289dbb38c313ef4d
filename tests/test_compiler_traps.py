"""Inputs that broke other compilers, each widened to its kind, against eager on the CPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from compiling import DEVICE, Function, at_every_level, check, level, noise, same  # noqa: F401

from torch_webgpu.compiler import backend

# ---------------------------------------------------------------------------------------------------- broadcast and sum


@pytest.mark.parametrize("dims", (None, 0, 1, (0, 1), -1))
@pytest.mark.parametrize("sizes", ((32, 64), (1, 7), (5, 1), (3, 257)))
def test_broadcast_and_sum_count_every_pair_once(sizes: tuple[int, int], dims: Any) -> None:
    a, b = noise(sizes[0]), noise(sizes[1], seed=1) * 2 + 1

    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        d = a[:, None] - b[None, :]
        return (d.sum() if dims is None else d.sum(dims)), d.mean(), (d * d).amax(0)

    check(f, a, b, tolerance=1e-4 * sizes[0])


# ---------------------------------------------------------------------------------------------------- recompilation


@at_every_level
@pytest.mark.parametrize("grow", ("cat", "slice", "pad"))
def test_a_growing_cache_is_compiled_few_times(grow: str) -> None:
    """Sizes become symbols after the second; a graph has plans for the sizes it met."""

    def step(k: torch.Tensor, x: torch.Tensor) -> Any:
        if grow == "cat":
            k = torch.cat([k, x], 1)
        elif grow == "slice":
            k = torch.cat([k[:, :1], k[:, 1:], x], 1)
        else:
            k = F.pad(k, (0, 0, 0, 1))
            k[:, -1:] = x
        return k, (k * x).sum(), F.scaled_dot_product_attention(x[None], k[None], k[None])

    before = len(backend.compiled)
    compiled = torch.compile(step, backend="webgpu")
    k, cache = torch.zeros(1, 1, 8), torch.zeros(1, 1, 8, device=DEVICE)
    for i in range(14):
        x = noise(1, 1, 8, seed=i)
        k, *want = step(k, x)
        cache, *got = compiled(cache, x.to(DEVICE))
        same([cache, *got], [k, *want], 1e-4)
    assert len(backend.compiled) - before <= 3


@at_every_level
def test_a_static_cache_is_written_in_place_and_compiled_once() -> None:
    def step(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, x)
        return (cache * x).sum(-1)

    compiled = torch.compile(step, backend="webgpu")
    before = len(backend.compiled)
    want = torch.zeros(1, 12, 4)
    got = want.to(DEVICE)
    for i in range(12):
        x, at = noise(1, 1, 4, seed=i), torch.tensor([i])
        same([compiled(got, at.to(DEVICE), x.to(DEVICE)), got], [step(want, at, x), want], 1e-5)
    (graph,) = backend.compiled[before:]
    assert len(graph.plans) == 1
    largest = 12 * 4 * 4
    copies = [d for d in graph.plans[0].dispatches if "copy" in d.name and "index" not in d.name and d.written >= largest]
    assert not copies


# ---------------------------------------------------------------------------------------------------- many operands


@pytest.mark.parametrize("count", (7, 8, 9, 10, 11, 16, 17, 24, 40))
def test_more_operands_than_a_kernel_may_bind(count: int) -> None:
    xs = [torch.full((5,), float(2 ** (i % 12))) for i in range(count)]

    def f(*xs: torch.Tensor) -> Any:
        total = sum(xs) * xs[0]
        return total, torch.cat(xs), torch.stack(xs), torch.stack(xs, 1).sum(1), torch.cat([x * 2 for x in xs])

    check(f, *xs)


@at_every_level
def test_many_results_of_one_input() -> None:
    check(lambda x: [x * k + 1 for k in range(20)], torch.arange(7.0))


@at_every_level
def test_many_inputs_updated_at_once() -> None:
    def f(*xs: torch.Tensor) -> Any:
        for a, b in itertools.pairwise(xs):
            a.add_(b)
        torch._foreach_mul_(list(xs), 2.0)
        return sum(xs)

    check(f, *[torch.full((3,), float(i)) for i in range(20)])


# ---------------------------------------------------------------------------------------------------- one buffer

SAME_BUFFER: dict[str, Function] = {
    "add out": lambda x: torch.add(x, x, out=x),
    "mul_": lambda x: x.mul_(x),
    "halves": lambda x: torch.add(x[:4], x[4:], out=x[:4]),
    "copy of halves": lambda x: x[4:].copy_(x[:4]),
    "shift right": lambda x: x[1:].copy_(x[:-1].clone()),
    "shift left": lambda x: x[:-1].copy_(x[1:] * 1),
    "reverse": lambda x: x.copy_(x.flip(0)),
    "cat with itself": lambda x: torch.cat([x, x, x[2:5]]),
    "square": lambda x: x.view(2, 4) @ x.view(4, 2),
    "matrix by itself": lambda x: x[:4].view(2, 2) @ x[:4].view(2, 2),
    "linear by itself": lambda x: F.linear(x.view(2, 4), x.view(2, 4), x[:2]),
    "norm by itself": lambda x: F.rms_norm(x, (8,), x),
    "softmax in place": lambda x: x.copy_(x.softmax(0)),
    "cumsum in place": lambda x: x.copy_(x.cumsum(0)),
    "sum into itself": lambda x: x[0].copy_(x.sum()),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "where": lambda x: x.copy_(torch.where(x > 3, x, -x)),
    "transposed": lambda x: x.view(2, 4)[:, :2].copy_(x.view(2, 4)[:, :2].t() * 1),
    "gather from itself": lambda x: x.copy_(x[(x.long() * 3) % 8]),
    "attention of itself": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 2, 4)] * 3),
    "index_add": lambda x: x.index_add_(0, torch.tensor([0, 1], device=x.device), x[2:4] * 1),
}


@at_every_level
@pytest.mark.parametrize("which", SAME_BUFFER)
def test_one_buffer_read_and_written(which: str) -> None:
    check(SAME_BUFFER[which], torch.arange(1.0, 9.0), tolerance=1e-5)


@at_every_level
def test_disjoint_parts_that_share_an_aligned_range() -> None:
    """Offsets of bindings are multiples of 256 bytes; closer parts of one buffer lie in overlapping windows."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.copy_(a * 2)
        return a + b

    for gap in (0, 1, 31, 63, 64, 65):
        check(f, torch.arange(200.0), place=lambda t, g=gap: (t[:40], t[40 + g : 80 + g]))


# ---------------------------------------------------------------------------------------------------- sizes and barriers


@at_every_level
def test_reductions_of_every_size() -> None:
    sizes = (1, 2, 3, 31, 63, 64, 65, 255, 256, 257, 1000, 4097)

    def f(*xs: torch.Tensor) -> Any:
        return [(x.sum(), x.cumsum(0), x.softmax(0), x.amax(), (x * 2).mean()) for x in xs]

    got = torch.compile(f, backend="webgpu")(*[torch.ones(n, device=DEVICE) for n in sizes])
    for n, (total, running, soft, largest, mean) in zip(sizes, got, strict=True):
        same(
            [total, running, largest, mean],
            [torch.tensor(float(n)), torch.arange(1.0, n + 1), torch.tensor(1.0), torch.tensor(2.0)],
        )
        same(soft, torch.full((n,), 1 / n), 1e-6)
