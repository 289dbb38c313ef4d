"""Random shapes, strides and dtypes (Hypothesis) against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import ALL as DTYPES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_webgpu  # noqa: F401 - registers the device

DEVICE = "webgpu"
property_test = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
View = Callable[[torch.Tensor], torch.Tensor]


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, exact in every dtype."""
    n = 1
    for size in shape:
        n *= size
    return ((torch.arange(n) * 7 + 3) % 11).reshape(shape).to(dtype)


@st.composite
def views(draw: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], View]:
    """The shape of a base tensor and a view of it that has ``shape``: permuted, sliced with steps, expanded."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.integers(1, 3)) for _ in shape]
    starts = [draw(st.integers(0, 3)) for _ in shape]
    base = tuple(starts[d] + shape[d] * steps[d] for d in order)
    back = sorted(range(len(order)), key=lambda i: order[i])

    def view(t: torch.Tensor) -> torch.Tensor:
        t = t.permute(back) if len(order) > 1 else t
        return t[tuple(slice(a, a + n * s, s) for a, n, s in zip(starts, shape, steps, strict=True))]

    return base, view


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


@st.composite
def broadcast_pairs(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(SHAPES)
    pair = []
    for _ in range(2):
        cut = draw(st.integers(0, len(shape) - 1))
        pair.append(tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape[cut:]))
    return pair[0], pair[1]


def check(got: torch.Tensor, want: torch.Tensor, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True)


@property_test
@given(
    st.data(),
    broadcast_pairs(),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from(("add", "mul", "maximum", "lt")),
)
def test_binary(data: Any, shapes: Any, a: torch.dtype, b: torch.dtype, name: str) -> None:
    (base_x, view_x), (base_y, view_y) = data.draw(views(shapes[0])), data.draw(views(shapes[1]))
    x, y = filled(base_x, a), filled(base_y, b)
    function = getattr(torch, name)
    check(function(view_x(x.to(DEVICE)), view_y(y.to(DEVICE))), function(view_x(x), view_y(y)))


@property_test
@given(
    st.data(),
    SHAPES,
    st.sampled_from(DTYPES),
    st.sampled_from(("sum", "amax", "amin", "any", "all", "mean", "var")),
    st.booleans(),
)
def test_reduction(data: Any, shape: tuple[int, ...], dtype: torch.dtype, name: str, keep: bool) -> None:
    if name in ("mean", "var") and not dtype.is_floating_point:
        dtype = torch.float32
    dims = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    base, view = data.draw(views(shape))
    x = filled(base, dtype)
    function = getattr(torch, name)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5) if dtype.is_floating_point else 0.0
    check(function(view(x.to(DEVICE)), dim=dims, keepdim=keep), function(view(x), dim=dims, keepdim=keep), tolerance)


@property_test
@given(st.data(), SHAPES, st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.sampled_from(("down", "up", "across")))
def test_copy(data: Any, shape: tuple[int, ...], source: torch.dtype, target: torch.dtype, way: str) -> None:
    """Between two random views; what lies outside the target view stays."""
    (base_x, view_x), (base_y, view_y) = data.draw(views(shape)), data.draw(views(shape))
    x, y = filled(base_x, source), torch.ones(base_y, dtype=target)
    want = y.clone()
    view_y(want).copy_(view_x(x))
    there, here = x.to(DEVICE if way != "up" else "cpu"), y.to(DEVICE if way != "down" else "cpu", copy=True)
    view_y(here).copy_(view_x(there))
    check(here, want)


@property_test
@given(st.data(), SHAPES, st.sampled_from(DTYPES), st.sampled_from(("add_", "mul_", "zero_", "clamp_")))
def test_in_place(data: Any, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> None:
    if dtype is torch.bool and name == "clamp_":
        dtype = torch.int8
    base, view = data.draw(views(shape))
    want = filled(base, dtype)
    got = want.to(DEVICE)
    arguments = {"add_": (3,), "mul_": (2,), "zero_": (), "clamp_": (2, 5)}[name]
    if dtype is torch.bool and name != "zero_":
        arguments = (True,)
    for tensor in (want, got):
        getattr(view(tensor), name)(*arguments)
    check(got, want)


@property_test
@given(st.data(), SHAPES, st.sampled_from(DTYPES))
def test_indexing(data: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Advanced indices, slices and None mixed, read and written."""
    base, view = data.draw(views(shape))
    x = filled(base, dtype)
    count = data.draw(st.integers(1, 4))
    places: list[Any] = []
    for n in shape:
        kind = data.draw(st.sampled_from(("list", "slice", "number", "all")))
        if kind == "list":
            places.append(torch.tensor([data.draw(st.integers(-n, n - 1)) for _ in range(count)]))
        elif kind == "slice":
            start = data.draw(st.integers(0, n))
            places.append(slice(start, data.draw(st.integers(start, n)), data.draw(st.integers(1, 2))))
        else:
            places.append(data.draw(st.integers(-n, n - 1)) if kind == "number" else slice(None))
    moved = tuple(p.to(DEVICE) if isinstance(p, torch.Tensor) else p for p in places)
    y = x.to(DEVICE)
    check(view(y)[moved], view(x)[tuple(places)])
    view(x)[tuple(places)] = 1
    view(y)[moved] = 1
    check(y, x)


@property_test
@given(st.data(), SHAPES, st.sampled_from(DTYPES), st.integers(1, 9))
def test_index_select_and_gather(data: Any, shape: tuple[int, ...], dtype: torch.dtype, count: int) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    base, view = data.draw(views(shape))
    x = filled(base, dtype)
    line = torch.tensor([data.draw(st.integers(0, shape[dim] - 1)) for _ in range(count)])
    grid = line.view([-1 if d == dim else 1 for d in range(len(shape))]).expand(
        [count if d == dim else n for d, n in enumerate(shape)]
    )
    y = x.to(DEVICE)
    check(view(y).index_select(dim, line.to(DEVICE)), view(x).index_select(dim, line))
    check(view(y).gather(dim, grid.to(DEVICE)), view(x).gather(dim, grid))
    check(torch.cat([view(y), view(y)], dim), torch.cat([view(x), view(x)], dim))
    check(view(y).flip(dim), view(x).flip(dim))
