"""Inputs that broke other compilers, each widened to its kind, compiled at every fusion level, against eager on the CPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from torch_webgpu.compiler import backend

DEVICE = "webgpu"
LEVELS = ("none", "pointwise", "full")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
Function = Callable[..., Any]


at_every_level = pytest.mark.parametrize("level", LEVELS, indirect=True)


@pytest.fixture(autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fusion level of the test: ``full``, unless it is run at every one."""
    torch._dynamo.reset()
    name = getattr(request, "param", "full")
    monkeypatch.setattr(backend, "config", dataclasses.replace(backend.config, fusion=name))
    return str(name)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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


# ---------------------------------------------------------------------------------------------------- broadcast and sum


@pytest.mark.parametrize("dims", (None, 0, 1, (0, 1), -1))
@pytest.mark.parametrize("sizes", ((32, 64), (1, 7), (5, 1), (3, 257)))
def test_broadcast_and_sum_count_every_pair_once(sizes: tuple[int, int], dims: Any) -> None:
    a, b = noise(sizes[0]), noise(sizes[1], seed=1) * 2 + 1

    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        d = a[:, None] - b[None, :]
        return (d.sum() if dims is None else d.sum(dims)), d.mean(), (d * d).amax(0)

    check(f, a, b, tolerance=1e-4 * sizes[0])


# ---------------------------------------------------------------------------------------------------- batch norm


@pytest.mark.parametrize(
    ("make", "shape"), ((nn.BatchNorm1d, (16, 8)), (nn.BatchNorm2d, (16, 8, 4, 4)), (nn.BatchNorm3d, (4, 8, 2, 2, 3)))
)
@pytest.mark.parametrize("momentum", (0.1, None))
def test_batch_norm_statistics_after_training_steps(make: Any, shape: tuple[int, ...], momentum: float | None) -> None:
    here, there = make(8, momentum=momentum), make(8, momentum=momentum).to(DEVICE)
    step = torch.compile(there, backend="webgpu")
    for seed in range(4):
        x = noise(*shape, seed=seed)
        same(step(x.to(DEVICE)), here(x), 1e-5)
    for name, want in here.named_buffers():
        torch.testing.assert_close(there.get_buffer(name).cpu(), want, rtol=1e-5, atol=1e-5)
    here.eval()
    there.eval()
    x = noise(*shape, seed=9)
    same(step(x.to(DEVICE)), here(x), 1e-5)


@at_every_level
def test_batch_norm_trains() -> None:
    here = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    there = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    there.load_state_dict(here.state_dict())
    there.to(DEVICE)
    step = torch.compile(there, backend="webgpu")
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (here, there)]
    for seed in range(3):
        x, y = noise(6, 3, 6, 6, seed=seed), torch.arange(6) % 5
        for model, optimiser, device in ((here, optimisers[0], "cpu"), (step, optimisers[1], DEVICE)):
            optimiser.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimiser.step()
    for name, want in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), want, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------- overlapping inputs

# Where two inputs of four elements lie in a base of twelve.
OVERLAPS: dict[str, tuple[slice, slice]] = {
    "apart": (slice(0, 4), slice(8, 12)),
    "adjacent": (slice(0, 4), slice(4, 8)),
    "later": (slice(0, 4), slice(2, 6)),
    "earlier": (slice(3, 7), slice(1, 5)),
    "same place": (slice(2, 6), slice(2, 6)),
    "interleaved": (slice(0, 8, 2), slice(1, 9, 2)),
    "crossing": (slice(0, 4), slice(0, 8, 2)),
}


def scale_then_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + y


def add_then_scale(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x + y
    y.sub_(z)
    return z, y * 2


def exchange(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    t = x.clone()
    x.copy_(y.clone())
    y.copy_(t)
    return x * 10 + y


def write_slices(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:3] = y[:2] + 1
    y[::2] += x[1::2]
    return y


@pytest.mark.parametrize("function", (scale_then_add, add_then_scale, exchange, write_slices), ids=lambda f: f.__name__)
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_overlapping_inputs(function: Function, overlap: str) -> None:
    first, second = OVERLAPS[overlap]
    check(function, torch.arange(12.0), place=lambda b: (b[first], b[second]))


@at_every_level
@pytest.mark.parametrize("function", (scale_then_add, add_then_scale, exchange, write_slices), ids=lambda f: f.__name__)
def test_one_compiled_function_under_every_overlap(function: Function) -> None:
    """The graph of one pattern must not be used for another."""
    compiled = torch.compile(function, backend="webgpu")
    for first, second in (*OVERLAPS.values(), *reversed(OVERLAPS.values())):
        here, there = torch.arange(12.0), torch.arange(12.0).to(DEVICE)
        want = function(here[first], here[second])
        same([compiled(there[first], there[second]), there], [want, here])
    x, y = torch.arange(4.0), torch.ones(4)
    a, b = x.to(DEVICE), y.to(DEVICE)
    same([compiled(a, b), a, b], [function(x, y), x, y])


def test_the_same_tensor_twice() -> None:
    for function in (scale_then_add, add_then_scale, exchange, write_slices):
        check(function, torch.arange(4.0), place=lambda b: (b, b))


def test_overlapping_matrices() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
        x.add_(1)
        return y @ w, x.t() * y

    for place in (
        lambda b, w: (b[:9].view(3, 3), b[3:12].view(3, 3), w),
        lambda b, w: (b[:9].view(3, 3), b[:9].view(3, 3).t(), w),
        lambda b, w: (b[:9].view(3, 3), b[9:].view(3, 3), b[4:13].view(3, 3)),
    ):
        check(f, torch.arange(18.0), torch.eye(3), place=place)


@at_every_level
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.int8, torch.bool))
def test_overlaps_inside_a_word(dtype: torch.dtype) -> None:
    """Elements narrower than a word: a write keeps its neighbours."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(~y if y.dtype is torch.bool else y + 1)
        return x * y

    base = (torch.arange(13) % 3).to(dtype)
    for first, second in (
        (slice(1, 4), slice(4, 7)),
        (slice(0, 3), slice(1, 4)),
        (slice(3, 6), slice(0, 3)),
        (slice(5, 6), slice(6, 7)),
    ):
        check(f, base, place=lambda b, i=first, j=second: (b[i], b[j]))


# ---------------------------------------------------------------------------------------------------- identities


def _dropped(name: str) -> Function:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = getattr(F, name)(x, 0.5, False)
        y += y
        return y

    return f


@pytest.mark.parametrize(
    "name", ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
)
def test_write_through_inactive_dropout(name: str) -> None:
    shape = {"dropout1d": (2, 3, 4), "dropout2d": (2, 3, 4, 2), "dropout3d": (2, 3, 2, 2, 2)}.get(name, (2, 3))
    check(_dropped(name), torch.ones(shape))


class Modules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.same = nn.Dropout(0.5), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.same(self.drop(x))
        y.mul_(3)
        return y + x


def test_write_through_inactive_dropout_modules() -> None:
    check(Modules().eval(), torch.arange(6.0).view(2, 3))


IDENTITIES: dict[str, Function] = {
    "to same dtype": lambda x: x.to(x.dtype),
    "contiguous": lambda x: x.contiguous(),
    "expand_as itself": lambda x: x.expand_as(x),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "type_as": lambda x: x.type_as(x),
    "float": lambda x: x.float(),
    "view": lambda x: x.view(-1),
    "transpose twice": lambda x: x.t().t(),
    "slice of all": lambda x: x[:],
    "select": lambda x: x[1],
    "strided slice": lambda x: x[:, ::2],
    "diagonal": lambda x: x.diagonal(),
    "unbind": lambda x: x.unbind(1)[1],
    "split": lambda x: x.split(1, 1)[2],
    "chunk": lambda x: x.chunk(2, 0)[1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 2)),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "movedim": lambda x: x.movedim(0, 1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "detach": lambda x: x.detach(),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "view as pairs": lambda x: x.view(3, 1, 4)[:, :, 1:3],
}
WRITES: dict[str, Function] = {
    "add_": lambda y: y.add_(1),
    "iadd": lambda y: y.__iadd__(y),
    "setitem": lambda y: y.__setitem__(..., 7.0),
    "copy_": lambda y: y.copy_(y * 2 + 1),
    "zero_": lambda y: y.zero_(),
    "mul by itself": lambda y: y.mul_(y),
    "out": lambda y: torch.add(y, 2, out=y),
    "masked_fill_": lambda y: y.masked_fill_(y > 4, -1.0),
}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_write_through_view(identity: str) -> None:
    view = IDENTITIES[identity]

    def f(x: torch.Tensor, z: torch.Tensor) -> Any:
        before = x * 2
        for k, write in enumerate(WRITES.values()):
            y = view(x)
            write(y)
            z[k] = x.sum() + before.sum()
        return x + 1, z

    check(f, torch.arange(12.0).view(3, 4), torch.zeros(len(WRITES)), calls=1)


@pytest.mark.parametrize(("size", "step"), ((1, 5), (2, 3), (2, 2), (1, 2), (5, 5), (1, 6), (3, 3)))
@pytest.mark.parametrize("dim", (0, 1))
def test_write_through_unfold_keeps_the_gaps(size: int, step: int, dim: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        v = x.unfold(dim, size, step)
        v.add_(v)
        return x

    def g(x: torch.Tensor) -> torch.Tensor:
        y = x[1:, :5]
        y.unfold(dim, size, step)[...] = 9
        y.unfold(dim, size, step).mul_(2)
        return y

    for function in (f, g):
        for base in (torch.arange(36).view(6, 6), torch.arange(36.0).half().view(6, 6)):
            check(function, base, calls=1)


# ---------------------------------------------------------------------------------------------------- results that alias

RESULTS: dict[str, Function] = {
    "input": lambda x, y: x,
    "input twice": lambda x, y: (x, x),
    "view of input": lambda x, y: (x[1:], x.t()),
    "view and value": lambda x, y: (x[1:], x + y),
    "mutated input": lambda x, y: x.add_(y),
    "mutated input and view": lambda x, y: (x.add_(1), x[0], y),
    "mutated view": lambda x, y: (x[0].mul_(3), x),
    "value twice": lambda x, y: (lambda z: (z, z))(x + y),
    "value and its view": lambda x, y: (lambda z: (z, z[1:], z.t()))(x + y),
    "equal values": lambda x, y: (x + y, x + y),
    "equal views": lambda x, y: (x[1:] + 0, x[1:] + 0, x[1:]),
    "times one": lambda x, y: (x * 1, x),
    "times one, then written": lambda x, y: (x * 1, x.add_(1)),
    "plus zero": lambda x, y: (x.int() + 0, x),
    "functional update": lambda x, y: (lambda z: (x.copy_(z), z)[1])(
        x.index_copy(0, torch.tensor([1], device=x.device), y[:1])
    ),
    "update and read": lambda x, y: (x.index_copy_(0, torch.tensor([1], device=x.device), y[:1]), x * 2, x[1]),
    "update from itself": lambda x, y: x.copy_(x.index_add(0, torch.tensor([0], device=x.device), x[2:])),
    "constant": lambda x, y: (torch.zeros(2, device=x.device), torch.zeros(2, device=x.device)),
    "expanded": lambda x, y: (x[:1].expand(3, 3), x.sum(0)),
    "detached": lambda x, y: (x.detach(), (x + y).detach()),
    "nested": lambda x, y: ((x, (x + 1,)), [y, x.view(-1)]),
    "split": lambda x, y: (x + y).split(1),
    "empty": lambda x, y: (x[:0], x[:0] + y[:0], x),
    "none and numbers": lambda x, y: (x + 1, None, 3, x.shape[0]),
}


@pytest.mark.parametrize("which", RESULTS)
def test_what_results_share_memory_with(which: str) -> None:
    check(RESULTS[which], torch.arange(9.0).view(3, 3), torch.ones(3, 3))


@at_every_level
def test_gradients_do_not_share_memory() -> None:
    """Both operands of an addition get the same gradient; optimisers change it in place."""
    x, y = (torch.ones(4, device=DEVICE, requires_grad=True) for _ in range(2))
    torch.compile(lambda x, y: (x + y) * (y + x), backend="webgpu")(x, y).sum().backward()
    assert x.grad is not None and y.grad is not None
    x.grad.zero_()
    same(y.grad, torch.full((4,), 4.0))


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


# ---------------------------------------------------------------------------------------------------- devices and gradients


def test_results_are_on_the_device() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.view(1, 3) + 1, torch.arange(3, device=x.device), torch.zeros_like(x), x.new_ones(2), x.sum(), x.argmax()

    check(f, torch.ones(3))


@at_every_level
@pytest.mark.parametrize("dtype", FLOATS)
def test_backward_of_a_linear_layer(dtype: torch.dtype) -> None:
    layer = nn.Linear(3, 2).to(DEVICE, dtype)
    x = torch.ones(4, 3, device=DEVICE, dtype=dtype, requires_grad=True)
    torch.compile(lambda t: layer(t).relu() if t.dim() == 1 else layer(t), backend="webgpu")(x).sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None and x.grad is not None
    same([layer.weight.grad, layer.bias.grad], [torch.full((2, 3), 4.0, dtype=dtype), torch.full((2,), 4.0, dtype=dtype)])
    torch.testing.assert_close(
        x.grad.cpu().float(), layer.weight.detach().cpu().float().sum(0).expand(4, 3), rtol=1e-2, atol=1e-2
    )


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up = nn.RMSNorm(8), nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.down, self.head, self.layer = nn.Linear(16, 8), nn.Linear(8, 4), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.head(F.gelu(self.layer(x)))  # type: ignore[no-any-return]


@at_every_level
@pytest.mark.parametrize("optimiser", (torch.optim.SGD, torch.optim.AdamW))
def test_training_equals_the_cpu(optimiser: Any) -> None:
    torch.manual_seed(0)
    here, there = Mlp(), Mlp()
    there.load_state_dict(here.state_dict())
    there.to(DEVICE)
    compiled = torch.compile(there, backend="webgpu")
    steps = [optimiser(m.parameters(), lr=0.05) for m in (here, there)]
    losses: list[list[float]] = [[], []]
    for seed in range(6):
        x, y = noise(5, 8, seed=seed), torch.arange(5) % 4
        runs: tuple[tuple[Any, str], ...] = ((here, "cpu"), (compiled, DEVICE))
        for i, (model, device) in enumerate(runs):
            steps[i].zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            steps[i].step()
            losses[i].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for name, want in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), want, rtol=1e-3, atol=1e-3)


@at_every_level
def test_a_compiled_training_step_with_its_loss() -> None:
    """Forward, loss and an update without an optimiser, in place on the parameters."""
    w = {d: noise(4, 3).to(d) for d in ("cpu", DEVICE)}

    def step(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = x @ w - y
        w.sub_(x.t() @ error * 0.1)
        return (error * error).mean()

    compiled = torch.compile(step, backend="webgpu")
    for seed in range(5):
        x, y = noise(6, 4, seed=seed), noise(6, 3, seed=seed + 50)
        same(compiled(w[DEVICE], x.to(DEVICE), y.to(DEVICE)), step(w["cpu"], x, y), 1e-4)
    same(w[DEVICE], w["cpu"], 1e-4)
