"""Decompositions of the ``_foreach_*`` ops that optimizers use: one op a tensor, which the compiler can fuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

# Ops whose namesake for one tensor is called otherwise, or has another signature.
_SINGLE: dict[str, Callable[..., Any]] = {
    "copy": lambda x, source: aten.copy.default(x, source),
    "zero": torch.zeros_like,
    "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition for each functional ``_foreach_*`` overload that works tensor by tensor."""
    found = {}
    for packet_name in dir(aten):
        if not packet_name.startswith("_foreach_") or packet_name.endswith("_"):
            continue
        name = packet_name.removeprefix("_foreach_")
        single = _SINGLE.get(name) or getattr(torch, name, None)
        if single is None:
            continue
        packet = getattr(aten, packet_name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            tensor_of_scalars = any(a.name == "scalars" and str(a.type) == "Tensor" for a in op._schema.arguments)
            if not op._schema.is_mutable and not tensor_of_scalars:
                found[op] = _each(single)
    return found


def _each(single: Callable[..., Any]) -> Callable[..., Any]:
    def decomposition(*args: Any, **kwargs: Any) -> Sequence[Any]:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))

        def of(value: Any, i: int) -> Any:
            return value[i] if isinstance(value, (list, tuple)) else value

        return [single(*(of(a, i) for a in args), **{k: of(v, i) for k, v in kwargs.items()}) for i in range(count)]

    return decomposition
