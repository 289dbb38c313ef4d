"""What happens to an op without a lowering: PyTorch's decomposition, its functional form, or the CPU."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .config import config
from .errors import FallbackError

_decomposed: list[torch.library.Library] = []
_aliases: dict[str, torch.library.Library] = {}
_warned: set[str] = set()
_fallen_back: Counter[str] = Counter()
_composed: Counter[str] = Counter()


def without_lowering(name: str, overload: str, key: str, cpu_by_choice: bool, this_signature_only: bool = False) -> Any:
    """What to do instead: "redispatch" to a decomposition registered now, an op of the same schema, or None for the CPU."""
    if not cpu_by_choice and name.startswith("aten::"):
        packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
        op = getattr(packet, overload or "default", None) if packet is not None else None
        decomposition = _decomposition_of(op)
        if decomposition is not None and this_signature_only:
            return _decomposing_op(key, op, decomposition)
        if decomposition is not None:
            library = torch.library.Library("aten", "IMPL")
            library.impl(key, _unless_circular(key, op, decomposition), "PrivateUse1")
            _decomposed.append(library)  # the registration lives as long as this object
            return "redispatch"
    _announce_fallback(f"{name}.{overload or 'default'}")
    return None


def _decomposing_op(key: str, op: Any, decomposition: Callable[..., Any]) -> str:
    """Name of an op of the package that decomposes ``op``, whose own registration stays with its lowering."""
    alias = "decomposed_" + key.replace(".", "_")
    if alias not in _aliases:
        library = torch.library.Library("webgpu", "FRAGMENT")
        library.define(alias + str(op._schema).partition("(")[1] + str(op._schema).partition("(")[2])
        library.impl(alias, _unless_circular(key, op, decomposition), "PrivateUse1")
        _aliases[alias] = library
    return f"webgpu::{alias}"


def _announce_fallback(name: str) -> None:
    if config.fallback == "error":
        raise FallbackError(
            f"{name} has no WebGPU kernel and TORCH_WEBGPU_FALLBACK=error forbids running it on the CPU. "
            "Unset the variable to allow it, or move the tensors to the CPU around this op."
        )
    if name in _warned:  # the native core asks once a signature
        return
    _warned.add(name)
    warnings.warn(
        f"{name} has no WebGPU kernel yet and runs on the CPU (slow: it waits for the device and copies). "
        "This is said once; torch_webgpu.fallbacks() counts.",
        stacklevel=3,
    )


class _CircularError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(f"the decomposition of {key} calls {key}")
        self.key = key


def _unless_circular(key: str, op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition, or the CPU where it ends in the very op (PyTorch's references of its primitives do)."""
    active = threading.local()
    circular = False

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal circular
        if getattr(active, "depth", 0):
            raise _CircularError(key)
        if not circular:
            active.depth = 1
            try:
                result = decomposition(*args, **kwargs)
                if result is not NotImplemented:
                    return result
                circular = True
            except _CircularError as e:
                if e.key != key:
                    raise
                circular = True
            finally:
                active.depth = 0
        return _on_cpu(op, args, kwargs)

    return run


def _on_cpu(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs the op on CPU copies; what the native core does for ops that have no decomposition."""
    _announce_fallback(f"{op.name()}.default" if op._overloadname == "default" else op.name())
    _fallen_back[op.name()] += 1
    to = lambda device: lambda x: x.to(device) if isinstance(x, torch.Tensor) else x  # noqa: E731
    moved_args, moved_kwargs = tree_map(to("cpu"), (args, kwargs))
    result = op(*moved_args, **moved_kwargs)
    written = []
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        target = args[i] if i < len(args) else kwargs[argument.name]
        value = moved_args[i] if i < len(args) else moved_kwargs[argument.name]
        if target.shape != value.shape:
            target.resize_(value.shape)
        written.append(target.copy_(value))
    if written:
        return written[0] if len(written) == 1 else tuple(written)
    return tree_map(to("webgpu"), result)


def python_fallbacks() -> dict[str, int]:
    """The fallbacks that the native core did not count."""
    return dict(_fallen_back)


def decomposed() -> dict[str, int]:
    """Ops that PyTorch's decompositions computed, and how often."""
    return dict(_composed)


def _decomposition_of(op: Any) -> Callable[..., Any] | None:
    if op is None:
        return None
    functional, outs = _functional_of(op)
    if functional is not None:
        compute = functional if _has_kernel(functional) else _counted(functional)
        if compute is not None:
            options = len(functional._schema.arguments) > len(op._schema.arguments)  # dtype and device, told by the target
            return writing(functional.name(), compute, outs, options)
    return _counted(op)


def _counted(op: Any) -> Callable[..., Any] | None:
    """PyTorch's decomposition of an op, counted in ``decomposed()``."""
    from torch._decomp import decomposition_table

    decomposition = decomposition_table.get(op)
    if decomposition is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        result = decomposition(*args, **kwargs)
        if result is not NotImplemented:
            _composed[op.name()] += 1
        return result

    return run


def _has_kernel(op: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "PrivateUse1"))


def _functional_of(op: Any) -> tuple[Any, list[str]]:
    """The op that an in-place or ``out=`` one is a form of, and the names of the ``out`` arguments (none: in place)."""
    name = op._schema.name.removeprefix("aten::")
    arguments = op._schema.arguments
    outs = [a.name for a in arguments if a.is_out]
    updates = name.endswith("_") and not name.endswith("__")
    packet = getattr(torch.ops.aten, name[:-1] if updates else name, None)
    if packet is None or updates == bool(outs):
        return None, outs
    types = [(a.name, str(a.type)) for a in arguments if not a.is_out]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        schema = candidate._schema
        if not schema.is_mutable and [(a.name, str(a.type)) for a in schema.arguments][: len(types)] == types:
            return candidate, outs
    return None, outs


def writing(name: str, compute: Callable[..., Any], outs: list[str], options: bool = False) -> Callable[..., Any]:
    """An in-place (``outs`` empty) or ``out=`` form by what computes the functional op.

    PyTorch's own table has such forms that resize inputs written in place.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(out) for out in outs] or [args[0]]
        if options:
            kwargs.update(dtype=targets[0].dtype, device=targets[0].device)
        results = compute(*args, **kwargs)
        if results is NotImplemented:
            return results
        for result, target in zip([results] if len(targets) == 1 else results, targets, strict=True):
            _write(name, result, target, args)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return run


_APART_COMPOSED = frozenset(("aten::take", "aten::masked_select"))


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    at = x.untyped_storage().data_ptr()
    return at != 0 and at == y.untyped_storage().data_ptr() and x.device == y.device


def _write(name: str, result: torch.Tensor, target: torch.Tensor, inputs: Sequence[Any]) -> None:
    if any(size > 1 and stride == 0 for size, stride in zip(target.shape, target.stride(), strict=True)):
        raise RuntimeError(
            f"unsupported operation in {name}: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )
    if name in _APART_COMPOSED and any(isinstance(x, torch.Tensor) and _overlap(x, target) for x in inputs):
        raise RuntimeError(
            f"unsupported operation in {name}: some elements of the input tensor and the written-to tensor refer to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )
    if result.shape != target.shape:
        if any(target is x for x in inputs):
            raise RuntimeError(
                f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)} in {name}"
            )
        target.resize_(result.shape)
    if not torch.can_cast(result.dtype, target.dtype):
        raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {target.dtype}")
    target.copy_(result)
