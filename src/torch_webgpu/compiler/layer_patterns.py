"""Recognises linear layers and RMS norms in graphs of ATen ops."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from .linear import lower_linear, lower_quantised, lower_rms_norm
from .lower import Fused
from .matching import argument, aten, dtype, is_number, is_op, is_tensor, replace_with, shape, single_user


def _eager_rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, gain.shape, gain, float(eps))


LINEAR = Fused("linear", lower_linear, torch.nn.functional.linear)
RMS_NORM = Fused("rms_norm", lower_rms_norm, _eager_rms_norm)
QUANTISED = {
    name: Fused(name, lower_quantised(name), lambda *args, name=name: getattr(torch.ops.webgpu, name)(*args))
    for name in ("linear_int8", "linear_int4")
}


def linears(module: fx.GraphModule) -> fx.GraphModule:
    """``mm`` and ``addmm`` become ``linear(x, w, b)`` = x w^T + b; products with quantised weights likewise."""
    for node in list(module.graph.nodes):
        if is_op(node, aten.mm.default):
            _linear(node, node.args[0], node.args[1], None)
        elif is_op(node, aten.addmm.default) and not node.kwargs and len(node.args) == 3 and len(shape(node.args[0])) == 1:
            _linear(node, node.args[1], node.args[2], node.args[0])
        elif isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "webgpu":
            fused = QUANTISED.get(str(node.target._schema.name).partition("::")[2])
            if fused is not None:
                replace_with(node, fused, tuple(node.args))
    return module


def _linear(node: fx.Node, x: Any, b: Any, bias: Any) -> None:
    if not dtype(node).is_floating_point or (bias is not None and dtype(bias) != dtype(node)):
        return
    swaps = is_op(b, aten.transpose.int) and sorted(d % 2 for d in b.args[1:3]) == [0, 1]
    swaps = swaps or (is_op(b, aten.permute.default) and [d % 2 for d in b.args[1]] == [1, 0])
    if swaps or is_op(b, aten.t.default):
        weight = b.args[0]
    else:
        with node.graph.inserting_before(node):
            weight = node.graph.call_function(aten.t.default, (b,))
        weight.meta["val"] = b.meta["val"].t()
    replace_with(node, LINEAR, (x, weight, bias))


def rms_norms(module: fx.GraphModule) -> fx.GraphModule:
    """``weight * (x * rsqrt(mean(x^2) + eps))``, with or without casts to float32 around it, becomes ``rms_norm``;
    so does ``torch.nn.functional.rms_norm``.
    """
    for node in list(module.graph.nodes):
        if is_op(node, aten.rsqrt.default):
            found = _rms_norm(node)
            if found is not None:
                last, x, gain, eps = found
                replace_with(last, RMS_NORM, (x, gain, eps))
        elif is_op(node, aten._fused_rms_norm.default):
            _fused_rms_norm(node)
    module.graph.eliminate_dead_code()
    return module


def _fused_rms_norm(node: fx.Node) -> None:
    """PyTorch's own op over the last dimension, where no backward pass wants its second result."""
    x, sizes, gain, eps = node.args
    result = single_user(node)
    if result is None or result.target is not operator.getitem or result.args[1] != 0 or not is_number(eps):
        return
    if isinstance(gain, fx.Node) and len(sizes) == 1 and dtype(gain) == dtype(x):  # type: ignore[arg-type]
        replace_with(result, RMS_NORM, (x, gain, eps))


def _rms_norm(root: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, float] | None:
    add: Any = root.args[0]
    if not is_op(add, aten.add.Tensor, aten.add.Scalar) or not is_number(add.args[1]) or add.kwargs:
        return None
    eps, mean = add.args[1], add.args[0]
    if not is_op(mean, aten.mean.dim) or not argument(mean, 2, "keepdim", False):
        return None
    wide = _squared(mean.args[0])
    if wide is None or [d % len(shape(wide)) for d in mean.args[1]] != [len(shape(wide)) - 1]:
        return None
    scaled: Any = single_user(root)
    if scaled is None or not is_op(scaled, aten.mul.Tensor) or wide not in scaled.args or root not in scaled.args:
        return None
    x: Any = wide
    if is_op(wide, aten._to_copy.default) and set(wide.kwargs) <= {"dtype"}:
        x = wide.args[0]
        cast: Any = single_user(scaled)
        if dtype(x) != torch.float32 and is_op(cast, aten._to_copy.default) and dtype(cast) == dtype(x):
            scaled = cast
    last: Any = single_user(scaled)
    if not is_op(last, aten.mul.Tensor) or dtype(last) != dtype(x):
        return None
    gain = next((a for a in last.args if a is not scaled), None)
    if not is_tensor(gain) or shape(gain) != (shape(x)[-1],) or not dtype(gain).is_floating_point:
        return None
    return last, x, gain, eps


def _squared(node: Any) -> fx.Node | None:
    if is_op(node, aten.pow.Tensor_Scalar) and node.args[1] == 2:
        found: fx.Node = node.args[0]
        return found
    if is_op(node, aten.mul.Tensor) and node.args[0] is node.args[1]:
        return node.args[0]
    return node.args[0] if is_op(node, aten.square.default) else None
