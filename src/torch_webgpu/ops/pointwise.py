"""Elementwise ops: the table of their expressions, selection, activations (sums, quotients, powers: arithmetic.py)."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..kernels.pointwise import Operand, check_fits, compute, dtype_of, float_dtype, result_dtype
from ..recipe import Graph, Scalar, Tensor
from ..registry import lower
from ..wgsl import BOOL, DType

# ---------------------------------------------------------------------------------------------------- registration


REFUSED = "refused"  # in place of a form: PyTorch has no such op on this class


def refuse(graph: Graph, d: DType) -> NoReturn:
    """Raises as PyTorch does where an op is not defined on a dtype."""
    raise RuntimeError(f"\"{graph.op}\" not implemented for '{d.name}'")


def need_float(graph: Graph, *operands: Operand) -> None:
    """Refuses integer and bool tensors."""
    for x in operands:
        if isinstance(x, Tensor) and not x.dtype.is_float:
            refuse(graph, x.dtype)


def unary(name: str, *, f: str, i: str | None = None, l: str | None = None, b: str | None = None) -> None:  # noqa: E741
    """A unary op; without integer forms, integers are computed in float32."""
    forms = {"f": f, "i": i, "l": l, "b": b}

    @lower(name)
    def lowering(graph: Graph, x: Operand, *_rest: Any) -> Tensor:
        d = dtype_of(x)
        form = forms[d.cls]
        if form == REFUSED:
            refuse(graph, d)
        if form is None:
            d = float_dtype(d)
            form = f
        return compute(graph, form, [x], [d.cls], d.cls, d, name)


def predicate(name: str, *, f: str, i: str = "false", l: str = "false", b: str = "false") -> None:  # noqa: E741
    """A unary op with a bool result."""
    forms = {"f": f, "i": i, "l": l, "b": b}

    @lower(name)
    def lowering(graph: Graph, x: Operand) -> Tensor:
        cls = dtype_of(x).cls
        return compute(graph, forms[cls], [x], [cls], "b", BOOL, name)


def binary(
    *names: str,
    f: str | None,
    i: str | None,
    l: str | None,  # noqa: E741
    b: str | None = None,
    compares: bool = False,
) -> None:
    """A binary op; a missing float form means integers only, a missing integer form computes in float32."""
    forms = {"f": f, "i": i, "l": l, "b": b}

    @lower(*names)
    def lowering(graph: Graph, x: Operand, y: Operand) -> Tensor:
        d = result_dtype(x, y)
        if forms[d.cls] is None:
            if f is None:
                refuse(graph, d)
            d = float_dtype(d)
        form = forms[d.cls]
        assert form is not None
        out = BOOL if compares else d
        form, operands = narrowed(form, [x, y], d)
        return compute(graph, form, operands, [d.cls, d.cls], "b" if compares else d.cls, out, names[0])


def narrowed(form: str, operands: list[Operand], d: DType) -> tuple[str, list[Operand]]:
    """The operands as numbers of a narrow integer dtype: PyTorch converts them first, so that 255 == -1 in uint8."""
    if d.cls != "i" or d.itemsize == 4:
        return form, operands
    bits = d.itemsize * 8
    taken = list(operands)
    for i, x in enumerate(operands):
        if isinstance(x, int) and not isinstance(x, bool):
            wrapped = x & ((1 << bits) - 1)
            taken[i] = wrapped if d.name == "uint8" or wrapped < 1 << (bits - 1) else wrapped - (1 << bits)
        elif (own := dtype_of(x)) is not d and own.cls in "il" and own.itemsize >= d.itemsize:
            form = form.replace(
                f"{{{i}}}", f"({{{i}}} & 255)" if d.name == "uint8" else f"extractBits({{{i}}}, 0u, {bits}u)"
            )
    return form, taken


unary("abs", f="abs({0})", i="abs({0})", l="abs64({0})", b="{0}")
unary("neg", f="-({0})", i="(0 - {0})", l="neg64({0})", b=REFUSED)
unary(
    "sign",
    f="select(sign({0}), 0.0, isnan_({0}))",
    i="sign({0})",
    l="select(vec2<u32>(select(0u, 1u, any({0} != vec2<u32>(0u))), 0u), vec2<u32>(0xffffffffu), neg_({0}))",
    b="{0}",
)
unary(
    "sgn",
    f="select(sign({0}), 0.0, isnan_({0}))",
    i="sign({0})",
    l="select(vec2<u32>(select(0u, 1u, any({0} != vec2<u32>(0u))), 0u), vec2<u32>(0xffffffffu), neg_({0}))",
    b="{0}",
)
unary("relu", f="select(max({0}, 0.0), {0}, isnan_({0}))", i="max({0}, 0)", l="max64({0}, vec2<u32>(0u))", b=REFUSED)
for _name, _expr in {
    "exp": "exp_({0})",
    "exp2": "exp2({0})",
    "expm1": "expm1_({0})",
    "log": "log_({0})",
    "log2": "(log_({0}) * 1.4426950408889634)",
    "log10": "(log_({0}) * 0.4342944819032518)",
    "log1p": "log1p_({0})",
    "sqrt": "root_({0})",
    "rsqrt": "quotient_(1.0, root_({0}))",
    "reciprocal": "quotient_(1.0, {0})",
    "sin": "sin_({0})",
    "cos": "cos_({0})",
    "tan": "(sin_({0}) / cos_({0}))",
    "asin": "asin_({0})",
    "acos": "acos_({0})",
    "atan": "atan_({0})",
    "asinh": "asinh_({0})",
    "acosh": "acosh_({0})",
    "atanh": "atanh_({0})",
    "sinh": "sinh_({0})",
    "cosh": "cosh_({0})",
    "lgamma": "lgamma_({0})",
    "digamma": "digamma_({0})",
    "tanh": "tanh_({0})",
    "erf": "erf_({0})",
    "erfc": "erfc_({0})",
    "erfinv": "erfinv_({0})",
    "sigmoid": "sigmoid_({0})",
    "silu": "({0} * sigmoid_({0}))",
    "hardsigmoid": "clamp_f(quotient_({0}, 6.0) + 0.5, 0.0, 1.0)",
    "hardswish": "quotient_({0} * clamp_f({0} + 3.0, 0.0, 6.0), 6.0)",
    "mish": "({0} * tanh_(softplus_({0})))",
    "log_sigmoid": "(-softplus_(-({0})))",
}.items():
    if _name != "log_sigmoid":
        unary(_name, f=_expr)
for _name, _expr in {"floor": "floor({0})", "ceil": "ceil({0})", "trunc": "trunc({0})", "round": "round({0})"}.items():
    unary(_name, f=_expr, i="{0}", l="{0}", b=REFUSED)
unary("frac", f="({0} - trunc({0}))", i=REFUSED, l=REFUSED, b=REFUSED)
unary("bitwise_not", f=REFUSED, i="(~{0})", l="(~{0})", b="(!{0})")
predicate("isnan", f="isnan_({0})")
predicate("isinf", f="isinf_({0})")
predicate("isfinite", f="(!isnan_({0}) && !isinf_({0}))", i="true", l="true", b="true")
predicate("isposinf", f="(isinf_({0}) && {0} > 0.0)")
predicate("isneginf", f="(isinf_({0}) && {0} < 0.0)")
predicate("signbit", f="((bitcast<u32>({0}) >> 31u) == 1u)", i="({0} < 0)", l="neg_({0})")
predicate("logical_not", f="(!truth({0}))", i="({0} == 0)", l="all({0} == vec2<u32>(0u))", b="(!{0})")
binary("mul.Tensor", "mul.Scalar", f="({0} * {1})", i="({0} * {1})", l="mul64({0}, {1})", b="({0} && {1})")
binary("maximum", f="fmaximum({0}, {1})", i="max({0}, {1})", l="max64({0}, {1})", b="({0} || {1})")
binary("minimum", f="fminimum({0}, {1})", i="min({0}, {1})", l="min64({0}, {1})", b="({0} && {1})")
binary("fmax", f="fmax_({0}, {1})", i="max({0}, {1})", l="max64({0}, {1})", b="({0} || {1})")
binary("fmin", f="fmin_({0}, {1})", i="min({0}, {1})", l="min64({0}, {1})", b="({0} && {1})")
binary("atan2", f="atan2_({0}, {1})", i=None, l=None)
binary(
    "bitwise_and.Tensor",
    "bitwise_and.Scalar",
    "__and__.Tensor",
    "__and__.Scalar",
    f=None,
    i="({0} & {1})",
    l="({0} & {1})",
    b="({0} && {1})",
)
binary(
    "bitwise_or.Tensor",
    "bitwise_or.Scalar",
    "__or__.Tensor",
    "__or__.Scalar",
    f=None,
    i="({0} | {1})",
    l="({0} | {1})",
    b="({0} || {1})",
)
binary(
    "bitwise_xor.Tensor",
    "bitwise_xor.Scalar",
    "__xor__.Tensor",
    "__xor__.Scalar",
    f=None,
    i="({0} ^ {1})",
    l="({0} ^ {1})",
    b="({0} != {1})",
)
binary(
    "bitwise_left_shift.Tensor",
    "bitwise_left_shift.Tensor_Scalar",
    "__lshift__.Tensor",
    "__lshift__.Scalar",
    f=None,
    i="shl32({0}, {1})",
    l="shl64({0}, shift64({1}))",
)
binary(
    "bitwise_right_shift.Tensor",
    "bitwise_right_shift.Tensor_Scalar",
    "__rshift__.Tensor",
    "__rshift__.Scalar",
    f=None,
    i="shr32({0}, {1})",
    l="shr64({0}, shift64({1}))",
)
for _name, _f, _l, _b in (
    ("eq", "({0} == {1})", "eq64({0}, {1})", "({0} == {1})"),
    ("ne", "({0} != {1})", "(!eq64({0}, {1}))", "({0} != {1})"),
    ("lt", "({0} < {1})", "lt64({0}, {1})", "(!{0} && {1})"),
    ("gt", "({0} > {1})", "lt64({1}, {0})", "({0} && !{1})"),
    ("le", "({0} <= {1})", "(!lt64({1}, {0}))", "(!{0} || {1})"),
    ("ge", "({0} >= {1})", "(!lt64({0}, {1}))", "({0} || !{1})"),
):
    # Subnormals differ from zero and NaN from everything, whatever a driver flushes or assumes.
    _exact = {
        "eq": "(({0} == {1}) && !isnan_({0}) && !isnan_({1}) && (truth({0}) == truth({1})))",
        "ne": "(({0} != {1}) || isnan_({0}) || isnan_({1}) || (truth({0}) != truth({1})))",
    }.get(_name, f"({_f} && !isnan_({{0}}) && !isnan_({{1}}))")
    binary(f"{_name}.Tensor", f"{_name}.Scalar", f=_exact, i=_f, l=_l, b=_b, compares=True)
for _name, _expr in (("logical_and", "({0} && {1})"), ("logical_or", "({0} || {1})"), ("logical_xor", "({0} != {1})")):

    @lower(_name)
    def _logical(graph: Graph, x: Operand, y: Operand, expr: str = _expr, name: str = _name) -> Tensor:
        return compute(graph, expr, [x, y], ["b", "b"], "b", BOOL, name)


# ---------------------------------------------------------------------------------------------------- selection, activations


@lower("where.self")
def _where(graph: Graph, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    d = result_dtype(x, y)
    for number in (x, y):
        check_fits(number, d)
    return compute(graph, "select({2}, {1}, {0})", [condition, x, y], ["b", d.cls, d.cls], d.cls, d, "where")


@lower("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(graph: Graph, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    c = x.dtype.cls
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(f"masked_fill only supports a 0-dimensional value tensor, but got shape {list(value.sizes)}")
    if mask.dtype is not BOOL:
        raise RuntimeError(f"masked_fill only supports boolean masks, but got dtype {mask.dtype.name}")
    if isinstance(value, (Scalar, float)) and dtype_of(value).is_float and c != "f":
        number = value.value if isinstance(value, Scalar) else value
        value = bool(number) if c == "b" else int(number)  # as PyTorch does: towards zero
    check_fits(value, x.dtype)
    return compute(graph, "select({0}, {2}, {1})", [x, mask, value], [c, "b", c], c, x.dtype, "masked_fill")


def _bounded(graph: Graph, x: Tensor, low: Operand | None, high: Operand | None) -> Tensor:
    d = result_dtype(x, *(v for v in (low, high) if v is not None))
    if d.cls == "b" and isinstance(low if high is None else high, Tensor) and (low is None or high is None):
        form, bound = ("({0} || {1})", low) if high is None else ("({0} && {1})", high)
        assert bound is not None
        return compute(graph, form, [x, bound], ["b", "b"], "b", d, "clamp")
    c = "i" if d.cls == "b" else d.cls
    largest, smallest = {"f": ("fmaximum", "fminimum"), "i": ("max", "min"), "l": ("max64", "min64")}[c]
    expr = "{0}"
    operands: list[Operand] = [x]
    for function, bound in ((largest, low), (smallest, high)):
        if bound is not None:
            check_fits(bound, d)
            expr = f"{function}({expr}, {{{len(operands)}}})"
            operands.append(bound)
    if d.cls == "b":
        refuse(graph, d)
    if len(operands) == 1:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    expr, operands = narrowed(expr, operands, d)
    return compute(graph, expr, operands, [c] * len(operands), c, d, "clamp")


@lower("clamp", "clamp.Tensor")
def _clamp(graph: Graph, x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    return _bounded(graph, x, low, high)


@lower("clamp_min", "clamp_min.Tensor")
def _clamp_min(graph: Graph, x: Tensor, low: Operand) -> Tensor:
    return _bounded(graph, x, low, None)


@lower("clamp_max", "clamp_max.Tensor")
def _clamp_max(graph: Graph, x: Tensor, high: Operand) -> Tensor:
    return _bounded(graph, x, None, high)


@lower("hardtanh")
def _hardtanh(graph: Graph, x: Tensor, low: Operand, high: Operand) -> Tensor:
    if not x.dtype.is_float:  # unlike clamp, integers stay integers and the bounds are truncated
        low, high = (int(v.value) if isinstance(v, Scalar) else v for v in (low, high))
    return _bounded(graph, x, low, high)


@lower("gelu")
def _gelu(graph: Graph, x: Tensor, approximate: str = "none") -> Tensor:
    need_float(graph, x)
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"approximate argument must be either none or tanh, got {approximate}")
    form = "gelu_tanh_({0})" if approximate == "tanh" else "gelu_({0})"
    return compute(graph, form, [x], ["f"], "f", x.dtype, "gelu")


@lower("leaky_relu")
def _leaky_relu(graph: Graph, x: Tensor, slope: Operand) -> Tensor:
    need_float(graph, x)
    return compute(graph, "select({0}, {0} * {1}, {0} < 0.0)", [x, slope], ["f", "f"], "f", x.dtype, "leaky_relu")


@lower("elu")
def _elu(graph: Graph, x: Tensor, alpha: Operand, scale: Operand, input_scale: Operand) -> Tensor:
    need_float(graph, x)
    form = "select({2} * {0}, {2} * {1} * expm1_({0} * {3}), {0} < 0.0)"
    return compute(graph, form, [x, alpha, scale, input_scale], ["f"] * 4, "f", x.dtype, "elu")


@lower("softplus")
def _softplus(graph: Graph, x: Tensor, beta: Operand, threshold: Operand) -> Tensor:
    need_float(graph, x)
    form = "select(softplus_({0} * {1}) / {1}, {0}, {0} * {1} > {2})"
    return compute(graph, form, [x, beta, threshold], ["f"] * 3, "f", x.dtype, "softplus")


@lower("threshold")
def _threshold(graph: Graph, x: Tensor, threshold: Operand, value: Operand) -> Tensor:
    c = x.dtype.cls
    if c == "b":
        refuse(graph, x.dtype)
    if c != "f":
        threshold, value = (int(v.value) if isinstance(v, Scalar) else v for v in (threshold, value))
    form = "select({0}, {2}, !lt64({1}, {0}))" if c == "l" else "select({0}, {2}, {0} <= {1})"
    return compute(graph, form, [x, threshold, value], [c] * 3, c, x.dtype, "threshold")


@lower("nan_to_num")
def _nan_to_num(
    graph: Graph, x: Tensor, nan: Operand | None = None, high: Operand | None = None, low: Operand | None = None
) -> Tensor:
    if not x.dtype.is_float:
        return compute(graph, "{0}", [x], [x.dtype.cls], x.dtype.cls, x.dtype, "copy")

    info = torch.finfo(x.dtype.torch)
    values = [0.0 if nan is None else nan, info.max if high is None else high, info.min if low is None else low]
    form = "select(select({0}, select({3}, {2}, {0} > 0.0), isinf_({0})), {1}, isnan_({0}))"
    return compute(graph, form, [x, *values], ["f"] * 4, "f", x.dtype, "nan_to_num")


# The backward formulas that CompositeImplicit code does not cover, for fine-tuning small models.
for _name, _expr in {
    "sigmoid_backward": "({0} * {1} * (1.0 - {1}))",
    "tanh_backward": "({0} * (1.0 - {1} * {1}))",
    "silu_backward": "({0} * sigmoid_({1}) * (1.0 + {1} * (1.0 - sigmoid_({1}))))",
}.items():

    @lower(_name, out="grad_input")
    def _backward(graph: Graph, grad: Tensor, y: Tensor, expr: str = _expr, name: str = _name) -> Tensor:
        return compute(graph, expr, [grad, y], ["f", "f"], "f", result_dtype(grad, y), name)


@lower("threshold_backward", out="grad_input")
def _threshold_backward(graph: Graph, grad: Tensor, x: Tensor, threshold: Operand) -> Tensor:
    return compute(
        graph, "select({0}, 0.0, {1} <= {2})", [grad, x, threshold], ["f"] * 3, "f", grad.dtype, "threshold_backward"
    )
