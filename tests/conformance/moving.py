"""Taking samples to the device: same strides, offsets and shared storages; and telling what cannot go there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from .pairs import DEVICE

WIDE = (torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64)


@dataclass
class Call:
    """One call of an op: what a SampleInput says, in our hands.

    Attributes:
        what: the aspect: forward, out=, in place, …
        broadcasts: whether the first argument is broadcast, so that the in-place form must refuse.
        process: picks what gradients are taken of.
    """

    what: str
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    broadcasts: bool = False
    process: Callable[[Any], Any] = lambda x: x
    noted: str = ""  # the text of the call before it was made, where it may resize its arguments

    @property
    def values(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        return self.input, self.args, self.kwargs

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [t for t in tree_flatten(self.values)[0] if isinstance(t, torch.Tensor)]

    def run(self, op: Callable[..., Any], **more: Any) -> Any:
        return op(self.input, *self.args, **self.kwargs, **more)

    def mapped(self, f: Callable[[Any], Any]) -> Call:
        """The call with ``f`` of every leaf of its arguments."""
        input_, args, kwargs = tree_map(f, self.values)
        return replace(self, input=input_, args=args, kwargs=kwargs)

    def size(self) -> int:
        """Elements of all tensors: the smaller of two failing calls tells more."""
        return sum(t.numel() for t in self.tensors)

    def __str__(self) -> str:
        if self.noted:
            return self.noted
        input_, args, kwargs = tree_map(_short, self.values)
        parts = [input_, *args, *(f"{k}={v}" for k, v in kwargs.items())]
        text = f"{self.what}({', '.join(str(p).replace(chr(39), '') for p in parts)})"
        return text if len(text) <= 150 else text[:147] + "..."


def _short(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    name = str(value.dtype).removeprefix("torch.")
    stepped = value.layout == torch.strided and not value.is_contiguous()
    return f"{name}{list(value.shape)}{'/' + str(list(value.stride())) if stepped else ''}"


class Mover:
    """Copies values to the device; tensors of one storage share one there too."""

    def __init__(self) -> None:
        self._storages: dict[Any, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device):
            return torch.device(DEVICE)
        return value

    def _tensor(self, t: torch.Tensor) -> torch.Tensor:
        if t.layout != torch.strided or t.dtype in WIDE or t.is_quantized:
            return t.detach().to(DEVICE).requires_grad_(t.requires_grad)
        storage = t.untyped_storage()
        key = (storage.data_ptr(), storage.nbytes(), t.dtype) if storage.nbytes() else id(t)
        base = self._storages.get(key)
        if base is None:
            whole = torch.empty(0, dtype=t.dtype).set_(storage)  # type: ignore[call-overload]
            base = self._storages[key] = whole.to(DEVICE)
        with torch.no_grad():
            moved = base.as_strided(t.shape, t.stride(), t.storage_offset())
        return moved.detach().requires_grad_(t.requires_grad)


def moved(call: Call, whole: bool = True) -> Call:
    """The call on the device; its first argument only, without ``whole``."""
    mover = Mover()
    result = call.mapped(mover) if whole else replace(call, input=mover(call.input))
    if "device" in result.kwargs:
        result.kwargs["device"] = DEVICE
    return result


def too_wide(values: Any) -> bool:
    """Whether there are numbers among the values, or dtypes, that WGSL does not have."""
    return any(
        (isinstance(t, torch.Tensor) and t.dtype in WIDE) or (isinstance(t, torch.dtype) and t in WIDE)
        for t in tree_flatten(values)[0]
    )
