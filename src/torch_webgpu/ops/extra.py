"""Less common elementwise ops, and those that PyTorch composes of others on every device but has no formula for here."""

from __future__ import annotations

from ..kernels.pointwise import compute, contiguous, float_dtype, result_dtype
from ..recipe import Graph, Tensor
from ..registry import lower
from .indexing import Indexed, apart, index_launch
from .pointwise import binary, refuse


@lower("hypot")
def _hypot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    d = result_dtype(x, y)
    if not d.is_float:
        refuse(graph, d)
    return compute(graph, "hypot_({0}, {1})", [x, y], ["f", "f"], "f", d, "hypot")


binary("gcd", f=None, i="gcd32({0}, {1})", l="gcd64({0}, {1})")


@lower("lcm")
def _lcm(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    d = result_dtype(x, y)
    if d.cls not in "il":
        refuse(graph, d)
    form = {
        "i": "abs(divt32({0}, max(gcd32({0}, {1}), 1)) * {1})",
        "l": "abs64(mul64(divt64({0}, max64(gcd64({0}, {1}), vec2<u32>(1u, 0u))), {1}))",
    }[d.cls]
    return compute(graph, form, [x, y], [d.cls] * 2, d.cls, d, "lcm")


@lower("angle")
def _angle(graph: Graph, x: Tensor) -> Tensor:
    form = "select(select(0.0, 3.141592653589793, {0} < 0.0), {0}, isnan_({0}))"
    return compute(graph, form, [x], ["f"], "f", float_dtype(x.dtype), "angle")


@lower("xlogy.Tensor")
def _xlogy(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    form = "select(select({0} * log_({1}), 0.0, {0} == 0.0 && !isnan_({0})), nan_(), isnan_({1}))"
    return compute(graph, form, [x, y], ["f", "f"], "f", float_dtype(result_dtype(x, y)), "xlogy")


@lower("put_")
def _put(graph: Graph, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """``put_``: the tensor as a line, whatever its shape; non-contiguous ones are left to the CPU."""
    if not x.contiguous or x.dtype is not source.dtype or index.numel != source.numel or index.dtype.cls not in "il":
        return NotImplemented
    line = x.reshape((x.numel,))
    places, values = (contiguous(graph, apart(graph, t, x)) for t in (index, source))
    where = Indexed(graph, line, [places.reshape((index.numel,))])
    if index.numel:
        index_launch(graph, where, line, values.reshape((source.numel,)), "add" if accumulate else "put", True)
    return x
