"""Where PyTorch's own Python code assumes devices of its list: made to work with this one, or to say clearly why not."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch


def install() -> None:
    """Called once, when the device is registered."""
    _print_from_cpu()
    _keep_tied_parameters()
    _invert_scale_in_float32()
    _refuse_data_parallel()
    _refuse_dlpack()
    _refuse_other_processes()


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "webgpu"


def _print_from_cpu() -> None:
    """Tensors print from a CPU copy: PyTorch's formatter computes in float64 and in many small ops."""
    format_here = torch._tensor_str._tensor_str

    def format_tensor(tensor: torch.Tensor, indent: int) -> str:
        return format_here(tensor.cpu() if _on_device(tensor) else tensor, indent)

    torch._tensor_str._tensor_str = format_tensor


_moving = threading.local()


def _keep_tied_parameters() -> None:
    """Parameters that a module shares (tied embeddings) stay shared, and one copy, when it moves to or from the device.

    PyTorch swaps the data inside a Parameter only between devices of its own list; for others ``Module._apply`` makes a
    new Parameter at each place where the old one stood.
    """
    apply_here = torch.nn.Module._apply

    def apply(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
        if getattr(_moving, "active", False):
            return apply_here(module, fn, recurse)
        places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for owner in module.modules():
            for key, p in owner._parameters.items():
                if p is not None:
                    places.setdefault(id(p), []).append((owner, key))
        shared = {k: v for k, v in places.items() if len(v) > 1}
        done: dict[int, torch.Tensor] = {}

        def once(t: torch.Tensor) -> torch.Tensor:
            if id(t) not in shared:
                return fn(t)
            if id(t) not in done:
                done[id(t)] = fn(t)
            return done[id(t)]

        _moving.active = True
        try:
            result = apply_here(module, once if shared else fn, recurse)
        finally:
            _moving.active = False
        for (owner, key), *others in shared.values():
            for other, name in others:
                other._parameters[name] = owner._parameters[key]
        return result

    torch.nn.Module._apply = apply  # type: ignore[method-assign]


class _Scale(torch.Tensor):
    """The scale of a ``GradScaler``, which PyTorch inverts in float64; float32's reciprocal is as good here (a test)."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def double(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def _invert_scale_in_float32() -> None:
    make_here = torch.amp.GradScaler._lazy_init_scale_growth_tracker

    def make(self: torch.amp.GradScaler, dev: torch.device) -> None:
        make_here(self, dev)
        if _on_device(self._scale):
            self._scale = self._scale.as_subclass(_Scale)  # type: ignore[union-attr]

    torch.amp.GradScaler._lazy_init_scale_growth_tracker = make  # type: ignore[method-assign]


def _refuse_data_parallel() -> None:
    """``DataParallel`` splits a batch over the devices of a process, with copies that exist in builds for CUDA only."""
    parallel = importlib.import_module("torch.nn.parallel.data_parallel")
    make_here, run_here = parallel.DataParallel.__init__, parallel.data_parallel

    def check(module: torch.nn.Module) -> None:
        here = any(_on_device(t) for t in (*module.parameters(), *module.buffers()))
        if here or parallel._get_available_device_type() == "webgpu":
            raise RuntimeError(
                "torch.nn.DataParallel splits a batch over several devices, and webgpu has one device per process: call the "
                "module itself, or start several processes and use torch.nn.parallel.DistributedDataParallel"
            )

    def make(self: torch.nn.DataParallel[Any], module: torch.nn.Module, *args: Any, **options: Any) -> None:
        check(module)
        make_here(self, module, *args, **options)

    @functools.wraps(run_here)
    def run(module: torch.nn.Module, *args: Any, **options: Any) -> Any:
        check(module)
        return run_here(module, *args, **options)

    parallel.DataParallel.__init__ = functools.wraps(make_here)(make)  # type: ignore[attr-defined]
    parallel.data_parallel = torch.nn.parallel.data_parallel = run  # type: ignore[attr-defined]


def _refuse_dlpack() -> None:
    """A DLPack capsule holds an address, and a WebGPU buffer has none: whoever reads the capsule would crash."""
    export_here, method_here = torch.utils.dlpack.to_dlpack, torch.Tensor.__dlpack__

    def check(tensor: Any) -> None:
        if _on_device(tensor):
            raise BufferError(
                "webgpu tensors cannot be exported with DLPack: a WebGPU buffer has no address; export tensor.cpu()"
            )

    def export(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        check(tensor)
        return export_here(tensor, *args, **kwargs)

    def method(self: torch.Tensor, **kwargs: Any) -> Any:
        check(self)
        return method_here(self, **kwargs)

    torch.to_dlpack = export  # type: ignore[assignment]
    torch.utils.dlpack.to_dlpack = export  # type: ignore[assignment]
    torch.Tensor.__dlpack__ = method  # type: ignore[method-assign]


def _refuse_other_processes() -> None:
    """PyTorch would try to share the buffer as a file of host memory."""
    reductions = importlib.import_module("torch.multiprocessing.reductions")

    def reduce(tensor: torch.Tensor) -> Any:
        if _on_device(tensor):
            raise RuntimeError(
                "a webgpu tensor cannot be sent to another process: a WebGPU buffer belongs to the process that made it; "
                "send tensor.cpu() and move it to the device there"
            )
        return reductions.reduce_tensor(tensor)

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)


class _NoInductor:
    """What ``torch.compile`` without ``backend=`` would need to make code for the device."""

    supports_caching = False

    @classmethod
    def create(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            'torch.compile\'s default backend, inductor, makes no code for webgpu: use torch.compile(..., backend="webgpu")'
        )


_INDUCTOR = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")


def inductor_class(name: str) -> type:
    """What Inductor looks up in the device's module when it compiles its first graph; AttributeError for other names."""
    if name not in _INDUCTOR:
        raise AttributeError(f"module 'torch.webgpu' has no attribute {name!r}")
    from torch._inductor.codegen.common import DeviceOpOverrides, get_device_op_overrides, register_device_op_overrides

    # PyTorch 2.11 fills this table with its own devices only while it is empty: without them CUDA's code does not parse.
    get_device_op_overrides("cpu")
    register_device_op_overrides("webgpu", DeviceOpOverrides())
    return _NoInductor
