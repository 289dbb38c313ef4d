"""Dawn, from the ``dawn-python`` wheel, through the wheel's ctypes bindings."""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import Any

from pydawn import utils
from pydawn import webgpu as w

from ..errors import WebGPUError
from ..wgsl import uses_subgroups
from .base import WANTED_FEATURES, AdapterInfo

name = "dawn"
_FEATURES = {
    "shader-f16": w.WGPUFeatureName_ShaderF16,
    "subgroups": w.WGPUFeatureName_Subgroups,
    "timestamp-query": w.WGPUFeatureName_TimestampQuery,
}
_KINDS = {1: "discrete", 2: "integrated", 3: "cpu", 4: "unknown"}
_BACKENDS = {
    w.WGPUBackendType_Vulkan: "Vulkan",
    w.WGPUBackendType_Metal: "Metal",
    w.WGPUBackendType_D3D12: "D3D12",
    w.WGPUBackendType_D3D11: "D3D11",
}


def _pointer(value: Any, kind: Any) -> Any:
    return ctypes.cast(ctypes.pointer(value), ctypes.POINTER(kind))


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(view: Any) -> str:
    return ctypes.string_at(view.data, view.length).decode(errors="replace") if view.data else ""


def _view(data: ctypes.Array[ctypes.c_char]) -> Any:
    view = w.WGPUStringView()
    view.data = ctypes.cast(data, ctypes.POINTER(ctypes.c_char))
    view.length = len(data) - 1
    return view


def _request(power: int, fallback: bool, backend: int = 0) -> Any:
    options = w.WGPURequestAdapterOptions()
    options.powerPreference = power
    options.forceFallbackAdapter = fallback
    options.backendType = backend
    result: dict[str, Any] = {}

    def done(status: int, adapter: Any, _message: Any, _user: Any) -> None:
        if status == w.WGPURequestAdapterStatus_Success:
            result["adapter"] = adapter

    info = w.WGPURequestAdapterCallbackInfo()
    info.mode = w.WGPUCallbackMode_WaitAnyOnly
    info.callback = w.WGPURequestAdapterCallback(done)
    utils.wait(w.wgpuInstanceRequestAdapterF(utils.instance, options, info))
    return result.get("adapter")


def _limits_of(handle: Any) -> Any:
    supported = w.WGPUSupportedLimits()
    w.wgpuAdapterGetLimits(handle, _pointer(supported, w.struct_WGPUSupportedLimits))
    return supported.limits


def _describe(handle: Any, index: int) -> AdapterInfo:
    info = w.WGPUAdapterInfo()
    w.wgpuAdapterGetInfo(handle, info)
    limits = _limits_of(handle)
    null = info.backendType == w.WGPUBackendType_Null
    return AdapterInfo(
        implementation=name,
        index=index,
        name=_text(info.device),
        kind="null" if null else _KINDS.get(info.adapterType, "unknown"),
        backend="Null" if null else _BACKENDS.get(info.backendType, "OpenGL"),
        driver=_text(info.description),
        features=tuple(f for f in WANTED_FEATURES if w.wgpuAdapterHasFeature(handle, _FEATURES[f])),
        limits={key: int(getattr(limits, key)) for key, *_ in limits._fields_ if key.startswith("m")},
        handle=handle,
    )


def null_adapter() -> AdapterInfo | None:
    """Dawn's driver that does nothing, which shows what the library itself costs; None where it was built without."""
    handle = _request(w.WGPUPowerPreference_HighPerformance, False, w.WGPUBackendType_Null)
    return _describe(handle, 0) if handle else None


def adapters() -> list[AdapterInfo]:
    """The adapters that Dawn's preferences lead to (it has no enumeration), the preferred one first."""
    found: list[AdapterInfo] = []
    wanted = (
        (w.WGPUPowerPreference_HighPerformance, False),
        (w.WGPUPowerPreference_LowPower, False),
        (w.WGPUPowerPreference_HighPerformance, True),
    )
    for power, fallback in wanted:
        handle = _request(power, fallback)
        if not handle:
            continue
        adapter = _describe(handle, len(found))
        if adapter.kind == "null":  # offered where there is no driver; it computes nothing
            continue
        if all((a.name, a.backend) != (adapter.name, adapter.backend) for a in found):
            found.append(adapter)
    return found


def _toggles(off: tuple[bytes, ...]) -> Any:
    names = (ctypes.c_char_p * len(off))(*off)
    toggles = w.WGPUDawnTogglesDescriptor()
    toggles.chain.sType = w.WGPUSType_DawnTogglesDescriptor
    toggles.disabledToggleCount = len(off)
    toggles.disabledToggles = ctypes.cast(names, type(toggles.disabledToggles))
    return toggles


class Device:
    """See ``DeviceHandle``."""

    def __init__(self, adapter: AdapterInfo, limits: dict[str, int], callbacks: tuple[int, int]) -> None:
        self.adapter = adapter
        self.features = adapter.features
        self.library = next(iter(w._libraries.values()))._name
        required = w.WGPURequiredLimits()
        required.limits = _limits_of(adapter.handle)
        for key, value in limits.items():
            setattr(required.limits, key, value)
        self.limits = adapter.limits | limits
        codes = [_FEATURES[f] for f in adapter.features]
        self.threadsafe = bool(w.wgpuAdapterHasFeature(adapter.handle, w.WGPUFeatureName_ImplicitDeviceSynchronization))
        if self.threadsafe:
            codes.append(w.WGPUFeatureName_ImplicitDeviceSynchronization)  # pipelines are made beside recording threads
        features = (w.WGPUFeatureName * len(codes))(*codes)
        descriptor = w.WGPUDeviceDescriptor()
        descriptor.requiredFeatureCount = len(codes)
        descriptor.requiredFeatures = ctypes.cast(features, ctypes.POINTER(w.WGPUFeatureName))
        descriptor.requiredLimits = _pointer(required, w.struct_WGPURequiredLimits)
        toggles = _toggles(off=(b"timestamp_quantization",))  # else GPU times are multiples of 65 µs
        descriptor.nextInChain = _pointer(toggles, w.struct_WGPUChainedStruct)
        fields = dict(w.struct_WGPUUncapturedErrorCallbackInfo2._fields_)
        descriptor.uncapturedErrorCallbackInfo2.callback = fields["callback"](callbacks[0])
        lost = dict(f[:2] for f in w.struct_WGPUDeviceLostCallbackInfo2._fields_)
        descriptor.deviceLostCallbackInfo2.mode = w.WGPUCallbackMode_AllowSpontaneous
        descriptor.deviceLostCallbackInfo2.callback = lost["callback"](callbacks[1])
        result: dict[str, Any] = {}

        def done(status: int, device: Any, message: Any, _user: Any) -> None:
            result.update(ok=status == w.WGPURequestDeviceStatus_Success, device=device, message=_text(message))

        info = w.WGPURequestDeviceCallbackInfo()
        info.mode = w.WGPUCallbackMode_WaitAnyOnly
        info.callback = w.WGPURequestDeviceCallback(done)
        utils.wait(w.wgpuAdapterRequestDeviceF(adapter.handle, descriptor, info))
        if not result.get("ok"):
            raise WebGPUError(f"Dawn refused a device on {adapter.name}: {result.get('message', 'no answer')}")
        self._device = result["device"]
        self._queue = w.wgpuDeviceGetQueue(self._device)
        self._layouts: dict[tuple[tuple[bool, ...], int], tuple[Any, Any]] = {}

    def pointers(self) -> tuple[int, int, int]:
        """See ``DeviceHandle``."""
        return _address(self._device), _address(self._queue), _address(utils.instance)

    def _layout(self, accesses: tuple[bool, ...], uniform_bytes: int) -> tuple[Any, Any]:
        key = (accesses, uniform_bytes)
        if key not in self._layouts:
            entries = (w.WGPUBindGroupLayoutEntry * (len(accesses) + bool(uniform_bytes)))()
            for i, entry in enumerate(entries):
                entry.binding = i
                entry.visibility = 4
                if i < len(accesses):
                    entry.buffer.type = (
                        w.WGPUBufferBindingType_Storage if accesses[i] else w.WGPUBufferBindingType_ReadOnlyStorage
                    )
                    entry.buffer.minBindingSize = 16  # a vec4 of words; blocks are never smaller
                else:  # the uniform
                    entry.buffer.type = w.WGPUBufferBindingType_Uniform
                    entry.buffer.hasDynamicOffset = 1
                    entry.buffer.minBindingSize = uniform_bytes
            descriptor = w.WGPUBindGroupLayoutDescriptor()
            descriptor.entryCount = len(entries)
            descriptor.entries = ctypes.cast(entries, ctypes.POINTER(w.WGPUBindGroupLayoutEntry))
            group = w.wgpuDeviceCreateBindGroupLayout(self._device, descriptor)
            groups = (w.WGPUBindGroupLayout * 1)(group)
            pipeline = w.WGPUPipelineLayoutDescriptor()
            pipeline.bindGroupLayoutCount = 1
            pipeline.bindGroupLayouts = groups
            self._layouts[key] = (group, w.wgpuDeviceCreatePipelineLayout(self._device, pipeline))
        return self._layouts[key]

    def create_pipeline(self, code: str, accesses: tuple[bool, ...], uniform_bytes: int) -> tuple[int, int]:
        """See ``DeviceHandle``."""
        group, layout = self._layout(accesses, uniform_bytes)
        if uses_subgroups(code):
            code = "enable subgroups;\n" + code
        keep_code = ctypes.create_string_buffer(code.encode())
        source = w.WGPUShaderModuleWGSLDescriptor()
        source.code = _view(keep_code)
        source.chain.sType = w.WGPUSType_ShaderSourceWGSL
        module_descriptor = w.WGPUShaderModuleDescriptor()
        module_descriptor.nextInChain = _pointer(source, w.struct_WGPUChainedStruct)
        module = w.wgpuDeviceCreateShaderModule(self._device, module_descriptor)
        keep_entry = ctypes.create_string_buffer(b"main")
        descriptor = w.WGPUComputePipelineDescriptor()
        descriptor.layout = layout
        descriptor.compute.module = module
        descriptor.compute.entryPoint = _view(keep_entry)
        pipeline = w.wgpuDeviceCreateComputePipeline(self._device, descriptor)
        w.wgpuShaderModuleRelease(module)
        return _address(pipeline), _address(group)


def open(adapter: AdapterInfo, limits: dict[str, int], callbacks: tuple[int, int]) -> Device:
    """See ``Implementation``."""
    return Device(adapter, limits, callbacks)


def wheel_version() -> str:
    """Version of the ``dawn-python`` wheel."""
    return version("dawn-python")
