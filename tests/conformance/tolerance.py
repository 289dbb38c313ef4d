"""How close is close enough: PyTorch's own tolerances, and the one table of wider bounds with their reasons."""

from __future__ import annotations

from functools import cache

import torch
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import OpInfo

from .pairs import infos

# torch.testing.assert_close's
DEFAULT = {torch.float32: (1.3e-6, 1e-5), torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}

# Where WGSL gives less, or another order of summation shows: {op: (rtol, atol, reason)} for float32 results.
_RECURRENCE = "a recurrence that cancels, in another order than the CPU's"
BOUNDS: dict[str, tuple[float, float, str]] = {
    "pow": (8e-6, 1e-5, "WGSL's pow inherits exp2(y * log2(x)): up to 128 * 2^-24 of the exponent"),
    "__rpow__": (8e-6, 1e-5, "as pow"),
    "float_power": (8e-6, 1e-5, "as pow"),
    "special.hermite_polynomial_he": (5e-5, 1e-5, _RECURRENCE),
    "special.hermite_polynomial_h": (5e-5, 1e-5, _RECURRENCE),
    "special.laguerre_polynomial_l": (1e-5, 1e-5, _RECURRENCE),
    **{
        name: (1e-5, 1e-5, "at a pole the value is what a rounded multiple of pi leaves of the sine")
        for name in (*(f"polygamma.polygamma_n_{n}" for n in range(5)), "special.polygamma.special_polygamma_n_0")
    },
    "logcumsumexp, gradients": (3e-3, 3e-3, "PyTorch's formula takes logarithms near 1e4, where float32 has steps of 1e-3"),
    "linalg.householder_product": (2e-5, 1e-5, "long chains of float32 sums, in another order than the CPU's"),
}


@cache
def of(name: str, dtype: torch.dtype, what: str = "") -> tuple[float, float]:
    """(rtol, atol) for results of a dtype: the widest of assert_close's, those of the OpInfo and ``BOUNDS``.

    Args:
        what: the aspect, for bounds of gradients only.
    """
    rtol, atol = DEFAULT.get(dtype, (0.0, 0.0))
    if dtype not in DEFAULT:
        return rtol, atol
    info: OpInfo = infos()[name]
    for decorated in info.decorators:
        for decorator in getattr(decorated, "decorators", (decorated,)):
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                rtol, atol = max(rtol, decorator.d[dtype].rtol), max(atol, decorator.d[dtype].atol)
            elif isinstance(decorator, precisionOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype])
    for key in (name, f"{name}, {what}"):
        if dtype is torch.float32 and key in BOUNDS:
            rtol, atol = max(rtol, BOUNDS[key][0]), max(atol, BOUNDS[key][1])
    return rtol, atol
