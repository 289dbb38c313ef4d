"""Comparing a result of the device with the CPU's."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from . import special, tolerance
from .moving import Call
from .pairs import DEVICE


def mismatch(name: str, call: Call, got: Any, want: Any, exact: Any = None) -> str | None:
    """What differs between (nested) results, or None.

    Args:
        exact: gives the result of the same call in a wider type, asked for only where half-precision or float32 differ:
            a result as close to it as to the CPU's is right.
    """
    have, expected = tree_flatten(got)[0], tree_flatten(want)[0]
    if len(have) != len(expected):
        return f"{len(have)} results instead of {len(expected)}"
    wide: list[Any] | None = None
    for i, (g, w) in enumerate(zip(have, expected, strict=True)):
        if not isinstance(w, torch.Tensor) or not isinstance(g, torch.Tensor):
            different = _number(name, g, w)
        else:
            different = _tensor(name, call, g, w)
            if different and exact is not None and w.is_floating_point() and g.shape == w.shape:
                wide = wide or tree_flatten(exact())[0]
                if len(wide) == len(expected) and isinstance(wide[i], torch.Tensor):
                    different = different and _tensor(name, call, g, wide[i].to(w.dtype))
        if different:
            return different if len(expected) == 1 else f"result {i}: {different}"
    return None


def _number(name: str, got: Any, want: Any) -> str | None:
    if isinstance(want, float) and isinstance(got, float):
        rtol, atol = tolerance.of(name, torch.float32)
        close = got == want or (got != got and want != want) or abs(got - want) <= atol + rtol * abs(want)
        return None if close else f"{got} instead of {want}"
    if isinstance(want, torch.device):
        return None
    return None if type(got) is type(want) and got == want else f"{got!r} instead of {want!r}"[:120]


def _tensor(name: str, call: Call, got: torch.Tensor, want: torch.Tensor) -> str | None:
    if name in special.OTHER_DTYPE:
        got = got.detach().cpu().to(want.dtype)
    elif got.device.type != DEVICE and call.tensors:
        return f"result on {got.device}"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    if name in special.UNINITIALISED:
        return None if got.stride() == want.stride() else f"strides {got.stride()} instead of {want.stride()}"
    here = got.detach().cpu()
    if special.is_random(name, call):
        return special.check_random(name, call, here, want.detach())
    rtol, atol = tolerance.of(name, want.dtype, call.what)
    try:
        torch.testing.assert_close(here, want.detach(), rtol=rtol, atol=atol, equal_nan=True)
        return None
    except AssertionError as e:
        if name in special.TIES and want.dtype == torch.int64 and special.places_agree(name, call, here, want):
            return None
        return _first_difference(here, want.detach(), rtol, atol) or str(e).splitlines()[0]


def _first_difference(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> str | None:
    wrong = ~torch.isclose(got.double(), want.double(), rtol=rtol, atol=atol, equal_nan=True)
    places = wrong.nonzero()
    if len(places) == 0:
        return None
    at = tuple(places[0].tolist())
    return f"{got[at].item():.7g} instead of {want[at].item():.7g} ({len(places)} of {got.numel()})"


def widened(call: Call) -> Call:
    """The call with float tensors as float64 (CPU)."""

    def wide(t: Any) -> Any:
        if isinstance(t, torch.dtype) and t in (torch.float16, torch.bfloat16, torch.float32):
            return torch.float64
        return t.detach().double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t

    return Call(call.what, *tree_map(wide, call.values))
