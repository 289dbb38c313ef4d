"""Special functions and orthogonal polynomials; integers are computed in float32, as everywhere."""

from __future__ import annotations

from ..kernels.pointwise import Operand, compute, dtype_of, float_dtype, result_dtype
from ..recipe import Graph, Tensor
from ..registry import lower
from ..wgsl import BF16, F16, I32
from .pointwise import refuse, unary

for _name, _form in {
    "i0": "i0_({0})",
    "special_i0e": "i0e_({0})",
    "special_i1": "i1_({0})",
    "special_i1e": "i1e_({0})",
    "special_modified_bessel_i0": "i0_({0})",
    "special_modified_bessel_i1": "i1_({0})",
    "special_modified_bessel_k0": "k0_({0}, false)",
    "special_modified_bessel_k1": "k1_({0}, false)",
    "special_scaled_modified_bessel_k0": "k0_({0}, true)",
    "special_scaled_modified_bessel_k1": "k1_({0}, true)",
    "special_bessel_j0": "j0_({0})",
    "special_bessel_j1": "j1_({0})",
    "special_bessel_y0": "y0_({0})",
    "special_bessel_y1": "y1_({0})",
    "special_spherical_bessel_j0": "spherical_j0_({0})",
    "special_airy_ai": "airy_ai_({0})",
    "special_erfcx": "erfcx_({0})",
    "special_ndtri": "ndtri_({0})",
}.items():
    unary(_name, f=_form)


def _of_two(name: str, form: str, *scalars: str) -> None:
    """A function of two numbers, in floats."""

    @lower(name, *(f"{name}.{overload}" for overload in scalars))
    def lowering(graph: Graph, x: Operand, y: Operand) -> Tensor:
        d = float_dtype(result_dtype(x, y))
        return compute(graph, form, [x, y], ["f", "f"], "f", d, name)


for _name, _form in {
    "chebyshev_polynomial_t": "chebyshev_t_({0}, {1})",
    "chebyshev_polynomial_u": "chebyshev_u_({0}, {1})",
    "chebyshev_polynomial_v": "chebyshev_v_({0}, {1})",
    "chebyshev_polynomial_w": "chebyshev_w_({0}, {1})",
    "shifted_chebyshev_polynomial_t": "chebyshev_t_({0} + {0} - 1.0, {1})",
    "shifted_chebyshev_polynomial_u": "chebyshev_u_({0} + {0} - 1.0, {1})",
    "shifted_chebyshev_polynomial_v": "chebyshev_v_({0} + {0} - 1.0, {1})",
    "shifted_chebyshev_polynomial_w": "chebyshev_w_({0} + {0} - 1.0, {1})",
    "hermite_polynomial_h": "hermite_h_({0}, {1})",
    "hermite_polynomial_he": "hermite_he_({0}, {1})",
    "laguerre_polynomial_l": "laguerre_({0}, {1})",
    "legendre_polynomial_p": "legendre_({0}, {1})",
}.items():
    _of_two(f"special_{_name}", _form, "x_scalar", "n_scalar")
_of_two("special_zeta", "zeta_({0}, {1})", "self_scalar", "other_scalar")
_of_two("igamma", "incomplete_gamma({0}, {1}).x")
_of_two("igammac", "incomplete_gamma({0}, {1}).y")


@lower("polygamma", inplace=False)
def _polygamma(graph: Graph, n: int, x: Tensor) -> Tensor:
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    form = {0: "digamma_({0})", 1: "trigamma_({0})"}.get(n, "polygamma_({1}, {0})")
    operands: list[Operand] = [x] if n < 2 else [x, float(n)]
    return compute(graph, form, operands, ["f"] * len(operands), "f", float_dtype(x.dtype), "polygamma")


@lower("polygamma_")
def _polygamma_in_place(graph: Graph, x: Tensor, n: int) -> Tensor:
    return _polygamma(graph, n, x)


@lower("nextafter")
def _nextafter(graph: Graph, x: Operand, y: Operand) -> Tensor:
    d = result_dtype(x, y)
    if not d.is_float:
        refuse(graph, d)
    form = "nextafter16_({0}, {1})" if d is F16 else f"nextafter_({{0}}, {{1}}, {65536 if d is BF16 else 1}u)"
    return compute(graph, form, [x, y], ["f", "f"], "f", d, "nextafter")


@lower("frexp.Tensor", results=2)
def _frexp(graph: Graph, x: Tensor) -> tuple[Tensor, Tensor]:
    if not dtype_of(x).is_float:
        raise RuntimeError(f"torch.frexp() only supports floating-point dtypes, got {x.dtype.name}")
    mantissa = compute(graph, "mantissa_({0})", [x], ["f"], "f", x.dtype, "mantissa")
    graph.target = None
    return mantissa, compute(graph, "exponent2_({0})", [x], ["f"], "i", I32, "exponent")
