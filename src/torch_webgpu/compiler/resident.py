"""Models whose tensors are on the CPU: computed on the device, their results handed back on the CPU.

Parameters are copied to the device once, and again when they change: PyTorch counts writes to a tensor, and some elements
are compared for writes that go around the count (``.data``). Other inputs are copied at each call. Outputs, gradients
and what the graph writes in place (running statistics) come back to the CPU tensors. Results that would be views of an input
are copies. A model that is moved with ``.to("webgpu")`` saves all these copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import UnsupportedDTypeError
from ..wgsl import BY_TORCH

DEVICE = torch.device("webgpu")
PROBES = 8  # elements of a parameter that are compared


def lives_on_cpu(module: fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's computes with tensors of the CPU alone, some of them more than a number."""
    found = [v for n in module.graph.nodes for v in _tensors(n.meta.get("example_value"))]
    return any(v.dim() for v in found) and all(v.device.type == "cpu" for v in found)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    return [value] if isinstance(value, torch.Tensor) else []


class _OnDevice(TorchFunctionMode):
    """What a program makes on the CPU, or moves there, is on the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cpu:
            return args[0]
        args = tuple(_moved(a) for a in args)
        kwargs = {k: _moved(v) for k, v in kwargs.items()}
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = DEVICE
        return func(*args, **kwargs)


def _moved(value: Any) -> Any:
    kind = value.type if isinstance(value, torch.device) else value.partition(":")[0] if isinstance(value, str) else None
    return DEVICE if kind == "cpu" else value


class _Program(torch.nn.Module):
    """Dynamo's graph, run for the device."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self._run = module

    def forward(self, *args: Any) -> Any:
        with _OnDevice():
            return self._run(*args)


def _uploaded(t: Any) -> bool:
    """Whether an input goes to the device; numbers that need no gradient stay."""
    return isinstance(t, torch.Tensor) and (t.dim() > 0 or t.requires_grad)


class _Upload(torch.autograd.Function):
    """A parameter's copy on the device, whose gradient comes back."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].cpu(), None


class _Copies:
    """Copies of parameters on the device, while the parameters live."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The copy, made anew if the parameter was written."""
        known = self._known.get(parameter)
        state = self._state(parameter)
        if known is None or known[0] != state[0] or not torch.equal(known[1], state[1]):
            with torch.no_grad():
                known = (*state, parameter.detach().to(DEVICE))
            self._known[parameter] = known
        copy: torch.Tensor = known[2]
        return copy

    @staticmethod
    def _state(parameter: torch.Tensor) -> tuple[tuple[int, int], torch.Tensor]:
        flat = parameter.detach().reshape(-1) if parameter.is_contiguous() else parameter.detach().flatten()[:PROBES]
        step = max(flat.numel() // PROBES, 1)
        return (parameter._version, parameter.data_ptr()), flat[::step].nan_to_num().clone()


class CpuResident:
    """A graph over CPU tensors as a callable that computes on the device."""

    def __init__(
        self, module: fx.GraphModule, inputs: Sequence[Any], compile_for_device: Callable[[Any, Sequence[Any]], Any]
    ) -> None:
        """
        Args:
            module: Dynamo's graph.
            inputs: its example inputs.
            compile_for_device: makes a callable of a module and example inputs on the device.

        Raises:
            UnsupportedDTypeError: for a tensor of a dtype that the device has not.
        """
        self._eager = module
        fakes = [_fake(n) for n in module.graph.nodes if n.op == "placeholder"]
        self._run = compile_for_device(_Program(module), fakes)
        context = TracingContext.try_get()
        infos = context.fw_metadata.input_info if context is not None and context.fw_metadata is not None else []
        infos = infos[len(infos) - len(fakes) :]
        self._written = [i for i, info in enumerate(infos) if info.mutates_data and _uploaded(inputs[i])]
        self._copies = _Copies()

    def __call__(self, *args: Any) -> Any:
        moved = [self._move(a) if _uploaded(a) else a for a in args]
        results = self._run(*moved)
        for i in self._written:
            with torch.no_grad():
                args[i].copy_(moved[i])
        own = {id(m): a for m, a in zip(moved, args, strict=True) if isinstance(m, torch.Tensor)}
        return type(results)(own.get(id(r), _home(r)) for r in results)

    def _move(self, t: torch.Tensor) -> torch.Tensor:
        if not isinstance(t, torch.nn.Parameter):
            return t.to(DEVICE)
        copy = self._copies.of(t)
        if not (t.requires_grad and torch.is_grad_enabled()):
            return copy
        moved: torch.Tensor = _Upload.apply(t, copy)
        return moved


def _home(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _fake(node: fx.Node) -> Any:
    """The example value of an input, on the device if that is where it goes."""
    value = node.meta["example_value"]
    if not _uploaded(value):
        return value
    if value.dtype not in BY_TORCH:
        raise UnsupportedDTypeError(
            f"torch.compile(backend='webgpu'): input {node.name} is {value.dtype}, which webgpu has not; use float32, "
            "or compile this function for the CPU"
        )
    with torch.no_grad():
        return value.detach().to(DEVICE).requires_grad_(value.requires_grad)
