"""Every case of the table on the device: all dtypes, all layouts of memory, in-place, ``out=``, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import ALL, FLOATS, MOVES, NORMS, POINTWISE, PRODUCTS, REDUCTIONS, Case, special, values
from torch.utils._pytree import tree_flatten

import torch_webgpu  # noqa: F401 - registers the device

DEVICE = "webgpu"
HALF = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
View = Callable[[torch.Tensor], torch.Tensor]
CASES = [*POINTWISE, *REDUCTIONS, *PRODUCTS, *NORMS, *MOVES]


# ---------------------------------------------------------------------------------------------------- layouts


def _identity(x: torch.Tensor) -> tuple[torch.Tensor, View]:
    return x, lambda t: t


def _transposed(x: torch.Tensor) -> tuple[torch.Tensor, View]:
    if x.dim() < 2:
        return _identity(x)
    return x.transpose(0, -1).contiguous(), lambda t: t.transpose(0, -1)


def _offset(x: torch.Tensor) -> tuple[torch.Tensor, View]:
    shape, n = x.shape, x.numel()
    return torch.cat([x.reshape(-1)[:1]] * 3 + [x.reshape(-1)]), lambda t: t[3 : 3 + n].view(shape)


def _gaps(x: torch.Tensor) -> tuple[torch.Tensor, View]:
    if x.dim() == 0:
        return _identity(x)
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1, dtype=x.dtype)
    wide[..., 1::2] = x
    return wide, lambda t: t[..., 1::2]


def _expanded(x: torch.Tensor) -> tuple[torch.Tensor, View]:
    if x.dim() == 0:
        return _identity(x)
    shape = x.shape
    return x[:1].contiguous(), lambda t: t.expand(shape)


LAYOUTS = {"contiguous": _identity, "transposed": _transposed, "offset": _offset, "gaps": _gaps, "expanded": _expanded}


# ---------------------------------------------------------------------------------------------------- comparison


def assert_same(got: Any, want: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Equal dtypes, shapes and values of tensors or of nested tuples of them; everything on the device."""
    have, expected = tree_flatten(got)[0], tree_flatten(want)[0]
    assert len(have) == len(expected)
    for g, w in zip(have, expected, strict=True):
        assert g.device.type == DEVICE
        torch.testing.assert_close(g.cpu(), w, rtol=rtol, atol=atol, equal_nan=True)


def reference(case: Case, inputs: list[torch.Tensor]) -> Any:
    """What the CPU computes, floats in float64 where rounding on the way matters."""
    plain = case.call(*inputs)
    if case.exact or case.host or not any(t.is_floating_point() for t in inputs):
        return plain
    flat, spec = tree_flatten(case.call(*(t.double() if t.is_floating_point() else t for t in inputs)))
    return spec.unflatten([w.to(p.dtype) for w, p in zip(flat, tree_flatten(plain)[0], strict=True)])


def _tolerance(case: Case, want: Any) -> float:
    floats = [t.dtype for t in tree_flatten(want)[0] if t.is_floating_point()]
    if not floats or (case.exact and floats[0] is torch.float32):
        return 0.0
    return HALF.get(floats[0], case.tolerance)


def _label(value: Any) -> str:
    return value.name.replace(" ", "_") if isinstance(value, Case) else str(value).removeprefix("torch.")


# ---------------------------------------------------------------------------------------------------- the table

PAIRS = [(case, dtype) for case in CASES for dtype in case.dtypes]


def test_names_are_unique() -> None:
    calls = [(c.name, tuple(c.dtypes), len(c.inputs)) for c in CASES]
    assert len(calls) == len(set(calls))


@pytest.mark.parametrize(("case", "dtype"), PAIRS, ids=_label)
def test_case(case: Case, dtype: torch.dtype) -> None:
    """Every layout in float32 (else the first dtype), contiguous and at an odd offset in the others."""
    layouts = LAYOUTS if dtype is case.dtypes[0] else {"contiguous": _identity, "offset": _offset}
    for layout in layouts.values():
        pairs = [layout(make(dtype)) for make in case.inputs]
        want = reference(case, [view(base) for base, view in pairs])
        tolerance = _tolerance(case, want)
        assert_same(case.call(*(view(base.to(DEVICE)) for base, view in pairs)), want, tolerance, tolerance)


_WITH_OUT = [c for c in POINTWISE if " " not in c.name and hasattr(torch, c.name) and c.name not in ("isfinite", "isinf")]
_WITH_OUT = [c for c in _WITH_OUT if c.name not in ("isnan", "relu", "masked_fill", "selu", "celu", "rsub")]


@pytest.mark.parametrize("case", _WITH_OUT, ids=_label)
def test_out(case: Case) -> None:
    """``out=``: fresh memory is resized, a strided slice gets its elements and nothing beside them."""
    dtype = case.dtypes[0]
    cpu = [make(dtype) for make in case.inputs]
    device = [t.to(DEVICE) for t in cpu]
    function = getattr(torch, case.name)
    extra: tuple[float, ...] = () if case.name != "threshold" else (0.5, -7.0)
    if case.name in ("clamp_min", "clamp_max"):
        extra = (1.0,)
    if case.name == "clamp":
        extra = (1, 3)
    if case.name == "lerp":
        extra = (0.3,)
    want = function(*cpu, *extra)
    empty = torch.empty(0, dtype=want.dtype, device=DEVICE)
    assert function(*device, *extra, out=empty) is empty
    assert_same(empty, want, case.tolerance, case.tolerance)
    expected = torch.ones(7, 13, 23, dtype=want.dtype)
    expected[:, 2:12:2, 1::2] = want
    base = torch.ones(7, 13, 23, dtype=want.dtype, device=DEVICE)
    function(*device, *extra, out=base[:, 2:12:2, 1::2])
    assert_same(base, expected, case.tolerance, case.tolerance)


_IN_PLACE = [
    c for c in POINTWISE if " " not in c.name and hasattr(torch.Tensor, c.name + "_") and c.name not in ("masked_fill",)
]


@pytest.mark.parametrize("case", _IN_PLACE, ids=_label)
def test_in_place(case: Case) -> None:
    """In-place on a transposed slice of a larger tensor: the base sees it, the rest of the base does not."""
    dtype = case.dtypes[0]
    first, *others = (make(dtype) for make in case.inputs)
    chosen: dict[str, list[Any]] = {"clamp_min": [1.0], "clamp_max": [1.0], "lerp": [*others, 0.3], "clamp": [1, 3]}
    arguments = chosen.get(case.name, others)
    base = torch.ones(13, 11, 7, dtype=dtype)
    base[3:8].copy_(first.permute(1, 2, 0))
    got = base.to(DEVICE)
    for tensor, moved in ((base, False), (got, True)):
        there = [t.to(DEVICE) if moved and isinstance(t, torch.Tensor) else t for t in arguments]
        getattr(tensor[3:8].permute(2, 0, 1), case.name + "_")(*there)
    assert_same(got, base, case.tolerance, case.tolerance)


# ---------------------------------------------------------------------------------------------------- aliasing


def test_aliasing() -> None:
    """One buffer read and written by the same op, whole, shifted, reversed and transposed."""
    for device in ("cpu", DEVICE):
        x = torch.arange(1.0, 122.0, device=device)
        x.mul_(x)
        x.add_(x)
        torch.add(x[:60], x[60:120], out=x[:60])
        x[1:].copy_(x[:-1].clone())
        torch.sub(x, 1, out=x)
        y = x[:49].view(7, 7)
        y.add_(y.t().contiguous())
        z = torch.stack([y @ y, y * y.t()])
        if device == "cpu":
            want = x, z
    assert_same((x, z), want, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", (torch.float32, torch.uint8, torch.float16), ids=_label)
@pytest.mark.parametrize("shift", (1, 2, 3, 5))
def test_overlapping_copy(dtype: torch.dtype, shift: int) -> None:
    """A copy between overlapping slices of one buffer behaves as if the source were read first."""
    x = torch.arange(101).to(dtype)
    for forward in (True, False):
        got = x.to(DEVICE)
        want = x.clone()
        if forward:
            got[shift:].copy_(got[:-shift])
            want[shift:] = x[:-shift]
        else:
            got[:-shift].copy_(got[shift:])
            want[:-shift] = x[shift:]
        assert_same(got, want)


# ---------------------------------------------------------------------------------------------------- type promotion


@pytest.mark.parametrize("a", ALL, ids=_label)
def test_promotion(a: torch.dtype) -> None:
    """Dtype and value for tensors, 0-dim tensors and numbers in every combination of dtypes."""
    for b in ALL:
        for x, y in (((3,), (3,)), ((3,), ()), ((), (3,)), ((), ())):
            p, q = torch.ones(x).to(a), torch.ones(y).to(b)
            for name in ("add", "div", "eq", "maximum"):
                op = getattr(torch, name)
                want = op(p, q)
                assert_same(op(p.to(DEVICE), q.to(DEVICE)), want)
    for shape in ((3,), ()):
        p = torch.ones(shape).to(a)
        for number in (True, 2, 0.5):
            for name in ("mul", "add", "true_divide", "ge", "pow"):
                op = getattr(torch, name)
                if name == "pow" and (a is torch.bool or isinstance(number, bool)):
                    continue
                assert_same(op(p.to(DEVICE), number), op(p, number))
        condition = torch.ones(shape) > 0
        assert_same(torch.where(condition.to(DEVICE), p.to(DEVICE), 2), torch.where(condition, p, 2))
        assert_same(torch.where(condition.to(DEVICE), 0.5, p.to(DEVICE)), torch.where(condition, 0.5, p))


@pytest.mark.parametrize("a", ALL, ids=_label)
def test_conversion(a: torch.dtype) -> None:
    """Every dtype to every other, and in-place ops that would narrow are refused as on the CPU."""
    x = values((41,), 0, 100)(a)
    for b in ALL:
        assert_same(x.to(DEVICE).to(b), x.to(b))
        got, want = torch.ones(41, dtype=b, device=DEVICE), torch.ones(41, dtype=b)
        try:
            want.add_(x)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="can't be cast"):
                got.add_(x.to(DEVICE))
            continue
        assert_same(got.add_(x.to(DEVICE)), want)


# ---------------------------------------------------------------------------------------------------- special values


_FLOAT_OPS = (
    "sin cos tan asin acos atan sinh cosh exp expm1 log log2 log10 log1p sqrt rsqrt tanh erf erfc sigmoid abs neg sign "
    "floor ceil trunc round asinh acosh atanh reciprocal square isnan isinf isfinite signbit relu erfinv lgamma digamma"
)
_PAIRED = "add sub mul div maximum minimum fmax fmin eq ne lt le atan2 fmod remainder pow"


@pytest.mark.parametrize("name", _FLOAT_OPS.split())
def test_special_values(name: str) -> None:
    """NaN, infinities, zeros of both signs and extremes through every float op, against the CPU."""
    x = special()(torch.float32)
    if name in ("sin", "cos", "tan"):  # of the extremes no digit is left in float32
        x = x[(x.abs() < 1e6) | ~x.isfinite()]
    function = getattr(torch, name)
    assert_same(function(x.to(DEVICE)), function(x), 1e-5, 1e-6)


@pytest.mark.parametrize("name", _PAIRED.split())
def test_special_pairs(name: str) -> None:
    function = getattr(torch, name)
    x = special()(torch.float32)[:8]
    a, b = x[:, None].expand(8, 8).contiguous(), x[None].expand(8, 8).contiguous()
    assert_same(function(a.to(DEVICE), b.to(DEVICE)), function(a, b), 1e-6, 1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=_label)
def test_bits_survive(dtype: torch.dtype) -> None:
    """Copies of every kind keep the bits of NaN, subnormals and negative zero."""
    words = torch.tensor([1, 0x7FC1, -32768, 0x7F81, 0x3FF, -1, 0x7C01, 0], dtype=torch.int16)
    x = words.repeat_interleave(dtype.itemsize // 2).view(dtype)
    integers = torch.int32 if dtype.itemsize == 4 else torch.int16
    y = x.to(DEVICE)
    for copy in (
        y.clone(),
        y.flip(0).flip(0),
        torch.cat([y[:3], y[3:]]),
        y[torch.arange(8, device=DEVICE)],
        y.view(2, 4).t().contiguous().t(),
    ):
        assert torch.equal(copy.cpu().reshape(-1).view(integers), x.view(integers))


def test_wide_integers() -> None:
    """64-bit arithmetic beyond 2^31 and at the limits."""
    x = torch.tensor([2**62 + 1, -(2**62), 2**33 - 1, -(2**31) - 1, 2**63 - 1, -(2**63), 7])
    y = torch.tensor([3, -(2**20), 2**31, 2**32 + 1, -2, 5, -3])
    names = "add sub mul floor_divide remainder fmod maximum minimum eq lt bitwise_and bitwise_xor gcd div"
    for name in names.split():
        function = getattr(torch, name)
        if name == "gcd":
            assert_same(function(x[:4].to(DEVICE), y[:4].to(DEVICE)), function(x[:4], y[:4]))
            continue
        assert_same(function(x.to(DEVICE), y.to(DEVICE)), function(x, y), 1e-6)
    for name in ("abs", "neg", "sign", "sum", "prod", "cumsum", "amax", "argmin", "sort"):
        arguments = (0,) if name in ("cumsum", "amax") else ()
        assert_same(
            tuple(getattr(x.to(DEVICE), name)(*arguments)) if name == "sort" else getattr(x.to(DEVICE), name)(*arguments),
            tuple(x.sort()) if name == "sort" else getattr(x, name)(*arguments),
        )
    assert_same(x.to(DEVICE) >> 33, x >> 33)
    assert_same(x.to(DEVICE) << 31, x << 31)
    assert_same(x.to(DEVICE).float(), x.float())


# ---------------------------------------------------------------------------------------------------- empty, 0-dim, large


@pytest.mark.parametrize("shape", ((0,), (0, 3), (5, 0, 2), ()), ids=str)
def test_empty_and_scalar_shapes(shape: tuple[int, ...]) -> None:
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: x + 1,
        lambda x: x * x,
        lambda x: x > 0,
        lambda x: x.sum(),
        lambda x: x.mean(),
        lambda x: x.prod(),
        lambda x: x.any(),
        lambda x: x.all(),
        lambda x: x.sum(-1, keepdim=True),
        lambda x: x.softmax(-1),
        lambda x: x.flip(-1),
        lambda x: x.roll(1, -1) if x.dim() else x,
        lambda x: x.cumsum(-1),
        lambda x: x.clone().zero_(),
        lambda x: torch.cat([x.reshape(-1), x.reshape(-1)]),
        lambda x: x.to(torch.int64),
        lambda x: torch.nonzero(x),
        lambda x: x[x > 0],
        lambda x: x.expand(2, *x.shape).contiguous(),
        lambda x: x.std(),
        lambda x: torch.linalg.vector_norm(x),
        lambda x: torch.where(x > 0, x, 0.0),
    ]
    x = torch.ones(shape)
    for call in calls:
        assert_same(call(x.to(DEVICE)), call(x), 1e-6, 1e-6)


def test_folded_grid() -> None:
    """More elements than one dimension of a dispatch covers (65 535 workgroups of 128)."""
    n = 65535 * 128 + 77
    x = torch.arange(n, device=DEVICE, dtype=torch.int32)
    y = x + 1
    assert y[[0, 65535 * 128 - 1, 65535 * 128, n - 1]].tolist() == [1, 65535 * 128, 65535 * 128 + 1, n]
    assert int(y.sum()) == n * (n + 1) // 2
    assert int(x.flip(0)[0]) == n - 1


# ---------------------------------------------------------------------------------------------------- creation, attention


def test_creation() -> None:
    calls: list[Callable[[str], torch.Tensor]] = [
        lambda d: torch.arange(7, device=d),
        lambda d: torch.arange(1, 10, 3, device=d),
        lambda d: torch.arange(5, -5, -2, device=d),
        lambda d: torch.arange(0, 1, 0.1, device=d),
        lambda d: torch.arange(2**40, 2**40 + 5, device=d),
        lambda d: torch.arange(5, device=d, dtype=torch.float16),
        lambda d: torch.linspace(-1, 1, 17, device=d),
        lambda d: torch.linspace(3, 3, 1, device=d),
        lambda d: torch.linspace(0, 9, 4, device=d, dtype=torch.int32),
        lambda d: torch.full((3, 5), 2**40, device=d),
        lambda d: torch.full((3,), True, device=d),
        lambda d: torch.full((2, 3), 1.5, device=d),
        lambda d: torch.eye(3, 5, device=d),
        lambda d: torch.ones(3, 5, device=d, dtype=torch.bfloat16),
        lambda d: torch.zeros_like(torch.ones(3, device=d, dtype=torch.int8)),
        lambda d: torch.tril_indices(4, 5, 1, device=d),
        lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
        lambda d: torch.ones(3, 4, device=d).new_full((2,), 7),
        lambda d: torch.full_like(torch.ones(2, 3, device=d).t(), 4),
    ]
    for call in calls:
        want, got = call("cpu"), call(DEVICE)
        assert got.stride() == want.stride()
        assert_same(got, want, 1e-6, 1e-6)
    with pytest.raises(RuntimeError, match="step"):
        torch.arange(0, 5, 0, device=DEVICE)
    with pytest.raises(RuntimeError, match="sign"):
        torch.arange(0, 5, -1, device=DEVICE)


@pytest.mark.parametrize("dtype", FLOATS, ids=_label)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("shape", ((1, 2, 7, 16), (2, 3, 33, 64), (2, 1, 5, 37)), ids=str)
def test_attention(shape: tuple[int, ...], causal: bool, dtype: torch.dtype) -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (values(shape, -1, 1, seed)(dtype) for seed in range(3))
    want = attention(q.double(), k.double(), v.double(), is_causal=causal).to(dtype)
    got = attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), is_causal=causal)
    tolerance = HALF.get(dtype, 1e-5)
    assert_same(got, want, tolerance, tolerance)
    mask = values((shape[0], 1, shape[2], shape[2]), seed=5)(torch.bool)
    mask[..., 0] = True
    want = attention(q.double(), k.double(), v.double(), attn_mask=mask).to(dtype)
    assert_same(attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), attn_mask=mask.to(DEVICE)), want, tolerance, tolerance)


def test_refused_dtypes() -> None:
    """float64 asked for by keyword is refused with a type error, not with a failed look-up."""
    x = torch.ones(3, device=DEVICE)
    for call in (x.sum, x.mean, x.prod):
        with pytest.raises(TypeError, match="float64"):
            call(dtype=torch.float64)
    with pytest.raises(TypeError, match="float64"):
        torch.arange(3, device=DEVICE, dtype=torch.float64)
    with pytest.raises(TypeError, match="float64"):
        torch.linspace(0, 1, 3, device=DEVICE, dtype=torch.float64)


def test_overlapping_results_are_refused() -> None:
    """A result cannot be written to memory that several of its elements share; filling it is fine."""
    x = torch.ones(3, device=DEVICE)
    shared = torch.zeros(1, device=DEVICE).expand(3)
    for call in (lambda: shared.add_(x), lambda: torch.mul(x, x, out=shared), lambda: torch.cat([x[:1], x[:2]], out=shared)):
        with pytest.raises(RuntimeError, match="single memory location"):
            call()
    assert shared.fill_(2).tolist() == [2.0, 2.0, 2.0]
