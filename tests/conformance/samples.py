"""Which calls of an op are tried: PyTorch's samples, evenly spread, and values, shapes and layouts at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db  # noqa: F401 - opinfo.core wants it imported first
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, SampleInput, UnaryUfuncInfo

from .moving import Call
from .pairs import label

# Ops that make tensors: they are told the device.
_FACTORIES = {
    *(
        "arange",
        "linspace",
        "linspace.tensor_overload",
        "logspace",
        "logspace.tensor_overload",
        "eye",
        "full",
        "ones",
        "zeros",
    ),
    *("empty", "empty_strided", "empty_permuted", "randn", "randint", "scalar_tensor", "tril_indices", "triu_indices"),
    "normal.number_mean",
}
_MOST = 100_000  # elements of a sample; PyTorch has a few that only show speed
Samples = Callable[..., Iterable[SampleInput]]


def _call(what: str, info: OpInfo, sample: SampleInput) -> Call:
    kwargs = dict(sample.kwargs)
    name = label(info)
    if (name in _FACTORIES or name.startswith("signal.windows.")) and "device" not in kwargs:
        kwargs["device"] = "cpu"
    return Call(what, sample.input, tuple(sample.args), kwargs, sample.broadcasts_input, sample.output_process_fn_grad)


def _small(calls: Iterable[Call]) -> list[Call]:
    return [c for c in calls if c.size() <= _MOST]


def spread(items: list[Any], count: int) -> list[Any]:
    """``count`` of the items, first and last among them, evenly apart."""
    if len(items) <= count:
        return items
    if count == 1:
        return [items[len(items) // 2]]
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def _all(info: OpInfo, dtype: torch.dtype, what: str, requires_grad: bool = False) -> list[Call]:
    return _small(_call(what, info, s) for s in info.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def forward(info: OpInfo, dtype: torch.dtype, count: int) -> list[Call]:
    """PyTorch's samples; one with an empty tensor is among them where there is any."""
    calls = _all(info, dtype, "forward")
    chosen = spread(calls, count)
    empty = [c for c in calls if any(t.numel() == 0 for t in c.tensors)]
    if empty and not any(c is e for c in chosen for e in empty):
        chosen.append(empty[len(empty) // 2])
    return chosen


def strided(calls: list[Call]) -> list[Call]:
    """The calls with tensors that have gaps."""
    found = []
    for call in calls:
        if any(t.layout != torch.strided for t in call.tensors):
            continue
        sample = SampleInput(call.input, args=call.args, kwargs=call.kwargs).noncontiguous()
        again = Call("non-contiguous", sample.input, sample.args, sample.kwargs, call.broadcasts, call.process)
        if any(t.numel() > 1 for t in again.tensors):
            found.append(again)
    return found


def differentiable(info: OpInfo, count: int) -> list[Call]:
    """float32 samples that ask for gradients."""
    return spread(_all(info, torch.float32, "gradients", requires_grad=True), count)


def _drawn(what: str, make: Samples, info: OpInfo, dtype: torch.dtype, count: int) -> list[Call]:
    try:
        samples = make(info, device="cpu", dtype=dtype, requires_grad=False)
        return spread(_small(_call(what, info, s) for s in islice(samples, 200)), count)
    except (ValueError, RuntimeError):  # a family that has no such values of the dtype
        return []


def elementwise(info: OpInfo, dtype: torch.dtype) -> list[Call]:
    """Broadcast, mixed with numbers and other dtypes, empty, extremal: what unary and binary ops have in common."""
    if isinstance(info, BinaryUfuncInfo):
        found = _drawn("broadcast", core.generate_elementwise_binary_broadcasting_tensors, info, dtype, 3)
        promoted = core.generate_elementwise_binary_with_scalar_and_type_promotion_samples
        if info.supports_rhs_python_scalar:
            found += _drawn("promotion", promoted, info, dtype, 3)
        for shape in ((0,), (2, 0, 3)):
            empty = torch.empty(shape, dtype=dtype)
            found.append(_with(info, dtype, "empty", empty, empty.clone()))
        edges = extremes(dtype)
        pairs = list(product(edges.tolist(), edges.tolist()))
        if not dtype.is_floating_point and dtype != torch.bool:  # min / -1 ends the process on the CPU
            pairs = [p for p in pairs if p != (edges[0].item(), -1)]
        left, right = (torch.tensor(side, dtype=dtype) for side in zip(*pairs, strict=True))
        found.append(_with(info, dtype, "extremal", left, right))
        return found + _drawn("large", core.generate_elementwise_binary_large_value_tensors, info, dtype, 1)
    if isinstance(info, UnaryUfuncInfo):
        tensors = {
            "empty": (torch.empty(0, dtype=dtype), torch.empty((2, 0, 3), dtype=dtype)),
            "extremal": (extremes(dtype),),
        }
        found = [_with(info, dtype, what, t) for what, ts in tensors.items() for t in ts]
        for call in _drawn("large", core.generate_elementwise_unary_large_value_tensors, info, dtype, 1):
            call.input = core._filter_unary_elementwise_tensor(call.input, op=info)
            found.append(call)
        return found
    return []


def _with(info: OpInfo, dtype: torch.dtype, what: str, x: torch.Tensor, *more: torch.Tensor) -> Call:
    return Call(what, x, more, dict(info.sample_kwargs("cpu", dtype, x)[0]))  # type: ignore[attr-defined]


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """NaN, infinities, both zeros, subnormals, and the limits of a dtype."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        f = torch.finfo(dtype)
        some = [
            math.nan,
            math.inf,
            -math.inf,
            -0.0,
            0.0,
            f.tiny,
            -f.tiny,
            f.smallest_normal / 2,
            f.max,
            f.min,
            f.eps,
            1.0,
            -1.5,
        ]
        return torch.tensor(some, dtype=torch.float64).to(dtype)
    i = torch.iinfo(dtype)
    return torch.tensor([i.min, i.min + 1, max(-1, i.min), 0, 1, 2, i.max - 1, i.max], dtype=dtype)


def _replace(old: torch.Tensor, new: torch.Tensor, value: Any) -> Any:
    return new if value is old else value


def sprinkled(calls: list[Call]) -> Iterator[Call]:
    """The first fitting call with NaN, infinities, or a signed zero and a subnormal at some places of a float tensor."""
    edges = {"NaN": [math.nan], "inf": [math.inf], "-inf, inf": [-math.inf, math.inf], "-0, 1e-40": [-0.0, 1e-40]}
    for call in calls:
        fits = (t for t in call.tensors if t.layout == torch.strided and t.is_floating_point() and t.numel() >= 3)
        first = next(fits, None)
        if first is None:
            continue
        for name, values in edges.items():
            replaced = first.detach().clone(memory_format=torch.contiguous_format)
            replaced.view(-1)[: len(values)] = torch.tensor(values, dtype=replaced.dtype)
            again = call.mapped(partial(_replace, first, replaced))
            again.what = f"extremal {name}"
            yield again
        return
