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
BOUNDS: dict[str, tuple[float, float, str]] = {}


@cache
def of(name: str, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol) for results of a dtype: the widest of assert_close's, those of the OpInfo and ``BOUNDS``."""
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
    if dtype is torch.float32 and name in BOUNDS:
        rtol, atol = max(rtol, BOUNDS[name][0]), max(atol, BOUNDS[name][1])
    return rtol, atol
