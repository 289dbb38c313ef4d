"""Ops that move or make data without computing: views, copies, factories. Eager PyTorch does them natively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import wgsl
from ..kernels.pointwise import copy_into
from ..ops.creation import fill
from ..recipe import Graph, Scalar, Tensor
from ..registry import apply, entry_of

Handler = Callable[[Graph, Any, list[Any], dict[str, Any]], Any]
_handlers: dict[str, Handler] = {}


def structural(*names: str) -> Callable[[Handler], Handler]:
    """Registers a handler (graph, op, args, kwargs) of FX nodes; names as in ``registry.lower``."""

    def register(handler: Handler) -> Handler:
        for name in names:
            _handlers[name] = handler
        return handler

    return register


def handler_of(op: Any) -> Handler | None:
    """How to lower a structural op; None for one that computes."""
    found = _handlers.get(key_of(op))
    if found is None and getattr(op, "is_view", False):
        return _view
    if found is None and getattr(op, "namespace", "") == "prims" and _namesake(op) is not None:
        return _primitive
    return found


def handled() -> Sequence[str]:
    """Names of the ops with a handler of their own."""
    return sorted(_handlers)


def key_of(op: Any) -> str:
    """The registry's name of an overload."""
    name = str(op._schema.name).removeprefix("aten::")
    return f"{name}.{op._overloadname}" if op._overloadname != "default" else name


# ---------------------------------------------------------------------------------------------------- on meta tensors


def _meta(x: Any) -> Any:
    if isinstance(x, Tensor):
        return torch.empty_strided(x.sizes, x.strides, dtype=x.dtype.torch, device="meta")
    if isinstance(x, Scalar):
        return torch.empty((), dtype=x.dtype.torch, device="meta") if x.is_tensor and not x.wrapped else x.constant
    if isinstance(x, (list, tuple)):
        return [_meta(v) for v in x]
    return x


def shape_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Meta tensors of an op's results: sizes, strides and dtypes as PyTorch makes them."""
    named = {k: _meta(v) for k, v in kwargs.items() if k not in ("device", "pin_memory")}
    if any(a.name == "device" for a in op._schema.arguments):
        named["device"] = "meta"
    return op(*(_meta(a) for a in args), **named)


def _fresh(graph: Graph, meta: torch.Tensor) -> Tensor:
    dtype = wgsl.DTYPES[wgsl.scalar_type(meta.dtype)]
    return graph.new(tuple(meta.shape), dtype, tuple(meta.stride()))


# ---------------------------------------------------------------------------------------------------- views


def _view(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    try:
        result = shape_of(op, args, kwargs)
    except RuntimeError:  # the strides here allow no such view: PyTorch's tensor was laid out otherwise
        copy = graph.new(x.sizes, x.dtype)
        copy_into(graph, x, copy)
        x, result = copy, shape_of(op, [copy, *args[1:]], kwargs)
    if isinstance(result, torch.Tensor):
        return _as_view(x, result)
    return [_as_view(x, part) for part in result]


def _as_view(x: Tensor, meta: torch.Tensor) -> Tensor:
    if meta.dtype != x.dtype.torch:
        return NotImplemented
    if meta.storage_offset() == 0 and tuple(meta.shape) == x.sizes and tuple(meta.stride()) == x.strides:
        return x
    return x.view(tuple(meta.shape), tuple(meta.stride()), int(meta.storage_offset()))


structural("_unsafe_view", "reshape", "_reshape_alias", "lift_fresh", "alias", "detach")(_view)


@structural("as_strided")
def _as_strided(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x, sizes, strides = args[:3]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    if x.delta or (offset is not None and x.offset):
        return NotImplemented  # the offset counts from the storage's start, which a plan does not know
    return x.view(tuple(sizes), tuple(strides), offset or 0)


# ---------------------------------------------------------------------------------------------------- copies


@structural("clone", "_to_copy", "lift_fresh_copy", "contiguous")
def _copy(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "webgpu":
        return NotImplemented
    x = args[0]
    out = _fresh(graph, shape_of(op, args, kwargs))
    if isinstance(x, Scalar):
        return fill(graph, out, x)
    copy_into(graph, x, out)
    return out


@structural("copy", "copy_")
def _copy_values(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[:2]
    out = target if key_of(op) == "copy_" else graph.new(target.sizes, target.dtype, target.strides)
    if isinstance(source, Scalar):
        return fill(graph, out, source)
    if source.buffer == out.buffer and source.offset == out.offset and source.strides == out.strides:
        return out  # an update in place already wrote it
    copy_into(graph, source, out)
    return out


def _scattered(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``x`` with the view that ``op``'s namesake takes replaced by ``src``."""
    x, source, *rest = args
    name = key_of(op).removesuffix("_scatter")
    if name == "as_strided" and (x.delta or x.offset or x.extent != x.numel):
        return NotImplemented
    view = {"slice": torch.ops.aten.slice.Tensor, "select": torch.ops.aten.select.int}.get(name)
    view = view or getattr(torch.ops.aten, name).default
    out = graph.new(x.sizes, x.dtype, x.strides if name == "as_strided" else None)
    copy_into(graph, x, out)
    place = _as_view(out, shape_of(view, [out, *rest], kwargs))
    copy_into(graph, source, place)
    return out


structural("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")(_scattered)


# ---------------------------------------------------------------------------------------------------- factories


def _filling(value: Any) -> Handler:
    def handler(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        out = _fresh(graph, shape_of(op, args, kwargs))
        number = value if not callable(value) else value(args)
        return out if number is None else fill(graph, out, number)

    return handler


structural("zeros", "zeros_like", "new_zeros")(_filling(0))
structural("ones", "ones_like", "new_ones")(_filling(1))
# Memory of a plan's temporaries is recycled: an empty tensor is filled, so that a masked use of it meets no stray NaN.
structural("empty.memory_format", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")(
    _filling(0)
)
structural("scalar_tensor")(_filling(lambda args: args[0]))
structural("full", "full_like", "new_full")(_filling(lambda args: args[-1] if len(args) == 2 else args[2]))


def _random(inplace: str, *parameters: float) -> Handler:
    def handler(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        entry = entry_of(inplace)
        assert entry is not None
        out = _fresh(graph, shape_of(op, args, kwargs))
        graph.op = inplace
        numbers = [Scalar(graph, -1, False, p, wgsl.F32, True) for p in parameters]
        return apply(graph, entry, [out, *numbers, None])[0]

    return handler


structural("rand", "rand_like")(_random("uniform_", 0.0, 1.0))
structural("randn", "randn_like")(_random("normal_", 0.0, 1.0))


# ---------------------------------------------------------------------------------------------------- other names


@structural("_local_scalar_dense")
def _item(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The number that a 0-dim CPU tensor holds: Dynamo hands numbers that may change over so."""
    x = args[0]
    if not isinstance(x, Scalar):
        return NotImplemented
    return Scalar(graph, x.index, x.is_tensor, x.constant, x.dtype, True)


def _namesake(op: Any) -> str | None:
    """The ATen op that a primitive of PyTorch's reference implementations stands for: elementwise ones."""
    name = str(op._schema.name).removeprefix("prims::")
    return next((key for key in (f"{name}.self", f"{name}.Tensor", name) if entry_of(key) is not None), None)


def _primitive(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    key = _namesake(op)
    entry = entry_of(key or "")
    if entry is None or kwargs:
        return NotImplemented
    graph.op = str(key)
    return apply(graph, entry, [_operand(graph, a) for a in args])[0]


def _operand(graph: Graph, value: Any) -> Any:
    """A number in the place of a tensor."""
    if not isinstance(value, (bool, int, float)):
        return value
    kind = wgsl.BOOL if isinstance(value, bool) else wgsl.I64 if isinstance(value, int) else wgsl.F32
    return Scalar(graph, -1, False, value, kind, True)


@structural("prims::convert_element_type")
def _convert(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _copy(graph, torch.ops.aten._to_copy.default, args[:1], {"dtype": args[1]})


@structural("convolution_backward")
def _convolution_backward(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    entry = entry_of("convolution_backward_overrideable")
    assert entry is not None
    grad, x, weight, _, *window, mask = args
    results = apply(graph, entry, [grad, x, weight, *window, mask])
    return [r if wanted else None for r, wanted in zip(results, mask, strict=True)]


@structural("_scaled_dot_product_fused_attention_overrideable")
def _attention(graph: Graph, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    q, k, v, mask, dropout, causal = (*args, None, 0.0, False)[:6] if len(args) == 3 else (*args, 0.0, False)[:6]
    if isinstance(dropout, Scalar):
        dropout = dropout.constant
    if dropout:
        return NotImplemented
    scale = kwargs.get("scale")
    entry = entry_of("webgpu::attention")
    assert entry is not None
    graph.op = "attention"
    scale = scale if scale is not None else q.sizes[3] ** -0.5
    return [apply(graph, entry, [q, k, v, mask, bool(causal), scale])[0], *([None] * 8)]
