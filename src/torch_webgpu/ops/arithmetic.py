"""Arithmetic whose rules depend on its operands: sums with alpha, division, remainders, powers, sums of products."""

from __future__ import annotations

from ..kernels.pointwise import (
    LINEAR,
    MAIN,
    WORKGROUP,
    Operand,
    collapse,
    compute,
    dtype_of,
    float_dtype,
    index_code,
    index_words,
    result_dtype,
)
from ..recipe import Graph, Scalar, Tensor, Words, grid, register_error
from ..registry import lower
from ..wgsl import DType
from .pointwise import narrowed, need_float, refuse


def _arithmetic(name: str, f: str, i: str, l: str, b: str | None) -> None:  # noqa: E741
    """add and sub, with alpha."""

    @lower(f"{name}.Tensor", f"{name}.Scalar")
    def lowering(graph: Graph, x: Operand, y: Operand, alpha: Operand = 1) -> Tensor:
        d = result_dtype(x, y)
        form = {"f": f, "i": i, "l": l, "b": b}[d.cls]
        if form is None:
            raise RuntimeError(
                "Subtraction, the `-` operator, with two bool tensors is not supported; use `^` or logical_xor"
            )
        if not isinstance(alpha, Scalar) and alpha == 1:
            return compute(graph, form, [x, y], [d.cls] * 2, d.cls, d, name)
        if dtype_of(alpha).is_float and not d.is_float:
            raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
        scaled = {"f": "({2} * {1})", "i": "({2} * {1})", "l": "mul64({2}, {1})", "b": "({2} && {1})"}[d.cls]
        return compute(graph, form.replace("{1}", scaled), [x, y, alpha], [d.cls] * 3, d.cls, d, name)


_arithmetic("add", "({0} + {1})", "({0} + {1})", "add64({0}, {1})", "({0} || {1})")
_arithmetic("sub", "({0} - {1})", "({0} - {1})", "sub64({0}, {1})", None)


@lower("rsub.Tensor", "rsub.Scalar")
def _rsub(graph: Graph, x: Operand, y: Operand, alpha: Operand = 1) -> Tensor:
    if alpha != 1:
        return NotImplemented
    d = result_dtype(x, y)
    form = {"f": "({1} - {0})", "i": "({1} - {0})", "l": "sub64({1}, {0})"}[d.cls]
    return compute(graph, form, [x, y], [d.cls] * 2, d.cls, d, "rsub")


# ---------------------------------------------------------------------------------------------------- division


def check_zero_divisor(graph: Graph, y: Operand, d: DType) -> None:
    """Integer division by zero raises: at once for a number, at the next synchronising call for a tensor."""
    if not isinstance(y, Tensor):
        if (y.value if isinstance(y, Scalar) else y) == 0:
            raise RuntimeError("ZeroDivisionError")
        return
    if y.numel == 0:
        return
    error = graph.error_tensor()
    ident = register_error("RuntimeError", f"ZeroDivisionError: integer division by zero in {graph.op}")
    sizes, strides = collapse(y.sizes, [y.strides])
    n, rank = y.numel, len(sizes)

    def words(w: Words) -> None:
        w.u32("n", n)
        w.u32("id", ident)
        index_words(w, sizes, {"y": strides[0]})

    def source(w: Words) -> str:
        zero = {"i": "ld_y(x_y) == 0", "l": "all(ld_y(x_y) == vec2<u32>(0u))", "b": "!ld_y(x_y)"}[y.dtype.cls]
        return (
            MAIN.format(wg=WORKGROUP)
            + f"let i = {LINEAR.format(wg=WORKGROUP)};\nif (i >= {w.n}) {{ return; }}\n{index_code(w, rank, ['y'])}\n"
            + f"if ({zero}) {{ fail_e({w.id}, vec2<u32>(0u), 0u); }}\n}}"
        )

    graph.launch("check_zero", [("y", y, "r"), ("e", error, "a")], words, source, grid(n, WORKGROUP), rank)


@lower("div.Tensor", "div.Scalar")
def _div(graph: Graph, x: Operand, y: Operand) -> Tensor:
    d = float_dtype(result_dtype(x, y))
    return compute(graph, "quotient_({0}, {1})", [x, y], ["f", "f"], "f", d, "div")


_ROUNDED = {
    "trunc": {"f": "trunc(quotient_({0}, {1}))", "i": "divt32({0}, {1})", "l": "divt64({0}, {1})"},
    "floor": {"f": "floordiv_f({0}, {1})", "i": "divf32({0}, {1})", "l": "divf64({0}, {1})"},
    "remainder": {"f": "remf({0}, {1})", "i": "remf32({0}, {1})", "l": "remf64({0}, {1})"},
    "fmod": {"f": "fmod_({0}, {1})", "i": "remt32({0}, {1})", "l": "remt64({0}, {1})"},
}


def _rounded(graph: Graph, x: Operand, y: Operand, mode: str) -> Tensor:
    d = result_dtype(x, y)
    cls = "i" if d.cls == "b" else d.cls
    form, (x, y) = narrowed(_ROUNDED[mode][cls], [x, y], d)
    if not d.is_float:
        check_zero_divisor(graph, y, d)
    return compute(graph, form, [x, y], [cls, cls], cls, d, mode)


@lower("div.Tensor_mode", "div.Scalar_mode", out="out_mode")
def _div_mode(graph: Graph, x: Operand, y: Operand, mode: str | None = None) -> Tensor:
    return _div(graph, x, y) if mode is None else _rounded(graph, x, y, mode)


@lower("floor_divide", "floor_divide.Scalar")
def _floor_divide(graph: Graph, x: Operand, y: Operand) -> Tensor:
    return _rounded(graph, x, y, "floor")


@lower("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(graph: Graph, x: Operand, y: Operand) -> Tensor:
    return _rounded(graph, x, y, "remainder")


@lower("fmod.Tensor", "fmod.Scalar")
def _fmod(graph: Graph, x: Operand, y: Operand) -> Tensor:
    return _rounded(graph, x, y, "fmod")


@lower("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(graph: Graph, x: Operand, y: Operand) -> Tensor:
    d = result_dtype(x, y)
    if not d.is_float and not isinstance(y, (Tensor, Scalar)) and y < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    if d.is_float and isinstance(y, (int, float, Scalar)) and not isinstance(y, bool):
        number = y.value if isinstance(y, Scalar) else y
        simple = {
            2: "({0} * {0})",
            1: "{0}",
            0.5: "root_({0})",
            3: "({0} * {0} * {0})",
            -1: "quotient_(1.0, {0})",
            -0.5: "quotient_(1.0, root_({0}))",
        }
        if number in simple and isinstance(x, Tensor):
            return compute(graph, simple[number], [x], ["f"], "f", d, "pow")
    cls = "i" if d.cls == "b" else d.cls
    form = {"f": "pow_f({0}, {1})", "i": "powi({0}, {1})", "l": "pow64({0}, {1})"}[cls]
    return compute(graph, form, [x, y], [cls, cls], cls, d, "pow")


# ---------------------------------------------------------------------------------------------------- sums of products


@lower("addcmul")
def _addcmul(graph: Graph, x: Tensor, a: Tensor, b: Tensor, value: Operand = 1) -> Tensor:
    d = result_dtype(x, a, b)
    if d.cls == "b":
        refuse(graph, d)
    if dtype_of(value).is_float and not d.is_float:
        raise RuntimeError("For integral input tensors, argument value must not be a floating point number.")
    if d.cls == "l":
        return compute(graph, "add64({0}, mul64({3}, mul64({1}, {2})))", [x, a, b, value], ["l"] * 4, "l", d, "addcmul")
    return compute(graph, "({0} + {3} * {1} * {2})", [x, a, b, value], [d.cls] * 4, d.cls, d, "addcmul")


@lower("addcdiv")
def _addcdiv(graph: Graph, x: Tensor, a: Tensor, b: Tensor, value: Operand = 1) -> Tensor:
    if not a.dtype.is_float and not b.dtype.is_float:
        raise RuntimeError("Integer division with addcdiv is no longer supported; use true_divide and add")
    return compute(
        graph, "({0} + {3} * quotient_({1}, {2}))", [x, a, b, value], ["f"] * 4, "f", result_dtype(x, a, b), "addcdiv"
    )


@lower("lerp.Scalar", "lerp.Tensor")
def _lerp(graph: Graph, a: Tensor, b: Tensor, weight: Operand) -> Tensor:
    need_float(graph, a, b)
    form = "select({1} - ({1} - {0}) * (1.0 - {2}), {0} + {2} * ({1} - {0}), abs({2}) < 0.5)"
    return compute(graph, form, [a, b, weight], ["f"] * 3, "f", result_dtype(a, b), "lerp")
