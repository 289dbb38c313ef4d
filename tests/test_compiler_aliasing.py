"""Inputs, views and results that share memory, compiled, against eager on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from compiling import DEVICE, Function, at_every_level, check, level, same  # noqa: F401
from torch import nn

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
