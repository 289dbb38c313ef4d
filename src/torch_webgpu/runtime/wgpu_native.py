"""wgpu-native, from the ``wgpu`` wheel, through the wheel's cffi bindings."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from wgpu.backends.wgpu_native._ffi import ffi, lib, lib_path
from wgpu.backends.wgpu_native._helpers import get_wgpu_instance

from ..errors import WebGPUError
from .base import WANTED_FEATURES, AdapterInfo

name = "wgpu"
_KINDS = {1: "discrete", 2: "integrated", 3: "cpu", 4: "unknown"}
_KIND_ORDER = ("discrete", "integrated", "unknown", "cpu")


def _text(view: Any) -> str:
    return "" if view.data == ffi.NULL else ffi.string(view.data, view.length).decode(errors="replace")


def _view(text: bytes) -> tuple[Any, dict[str, Any]]:
    data = ffi.new("char[]", text)
    return data, {"data": data, "length": len(text)}


def _feature_values() -> dict[str, int]:
    found = {
        "shader-f16": getattr(lib, "WGPUFeatureName_ShaderF16", None),
        "subgroups": getattr(lib, "WGPUNativeFeature_Subgroup", None),
        "timestamp-query": getattr(lib, "WGPUFeatureName_TimestampQuery", None),
    }
    return {key: value for key, value in found.items() if value is not None}


def _limits_of(handle: Any) -> tuple[Any, dict[str, int]]:
    limits = ffi.new("WGPULimits *")
    lib.wgpuAdapterGetLimits(handle, limits)
    return limits, {key: int(getattr(limits, key)) for key in dir(limits) if key.startswith("m")}


def adapters() -> list[AdapterInfo]:
    """All adapters, GPUs before CPU rasterisers; OpenGL adapters only where Vulkan, Metal or D3D12 give none."""
    instance = get_wgpu_instance()
    count = lib.wgpuInstanceEnumerateAdapters(instance, ffi.NULL, ffi.NULL)
    handles = ffi.new("WGPUAdapter[]", count)
    lib.wgpuInstanceEnumerateAdapters(instance, ffi.NULL, handles)
    backends = {
        lib.WGPUBackendType_Vulkan: "Vulkan",
        lib.WGPUBackendType_Metal: "Metal",
        lib.WGPUBackendType_D3D12: "D3D12",
    }
    found = []
    for handle in handles:
        info = ffi.new("WGPUAdapterInfo *")
        lib.wgpuAdapterGetInfo(handle, info)
        features = tuple(f for f, v in _feature_values().items() if lib.wgpuAdapterHasFeature(handle, v))
        found.append(
            AdapterInfo(
                implementation=name,
                index=0,
                name=_text(info.device),
                kind=_KINDS.get(info.adapterType, "unknown"),
                backend=backends.get(info.backendType, "OpenGL"),
                driver=_text(info.description),
                features=tuple(f for f in WANTED_FEATURES if f in features),
                limits=_limits_of(handle)[1],
                handle=handle,
            )
        )
    found.sort(key=lambda a: (a.backend == "OpenGL", _KIND_ORDER.index(a.kind)))
    for index, adapter in enumerate(found):
        adapter.index = index
    return found


class Device:
    """See ``DeviceHandle``."""

    def __init__(self, adapter: AdapterInfo, limits: dict[str, int], callbacks: tuple[int, int]) -> None:
        # The wheel logs through Python, which may wait for the interpreter lock in the middle of any library call;
        # errors arrive at the callbacks below all the same.
        lib.wgpuSetLogLevel(lib.WGPULogLevel_Off)
        lib.wgpuSetLogCallback(ffi.NULL, ffi.NULL)
        self.adapter = adapter
        self.library = lib_path
        self.features = adapter.features
        self.threadsafe = True
        wanted, granted = _limits_of(adapter.handle)
        for key, value in limits.items():
            setattr(wanted, key, value)
        self.limits = granted | limits
        values = _feature_values()
        features = ffi.new("WGPUFeatureName[]", [values[f] for f in adapter.features])
        descriptor = ffi.new("WGPUDeviceDescriptor *")
        descriptor.requiredFeatureCount = len(adapter.features)
        descriptor.requiredFeatures = features
        descriptor.requiredLimits = wanted
        descriptor.uncapturedErrorCallbackInfo.callback = ffi.cast("WGPUUncapturedErrorCallback", callbacks[0])
        descriptor.deviceLostCallbackInfo.mode = lib.WGPUCallbackMode_AllowSpontaneous
        descriptor.deviceLostCallbackInfo.callback = ffi.cast("WGPUDeviceLostCallback", callbacks[1])
        result: dict[str, Any] = {}

        @ffi.callback("void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)")
        def done(status: int, device: Any, message: Any, _a: Any, _b: Any) -> None:
            result.update(ok=status == lib.WGPURequestDeviceStatus_Success, device=device, message=_text(message))

        info = ffi.new("WGPURequestDeviceCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = done
        lib.wgpuAdapterRequestDevice(adapter.handle, descriptor, info[0])
        lib.wgpuInstanceProcessEvents(get_wgpu_instance())
        if not result.get("ok"):
            raise WebGPUError(f"wgpu-native refused a device on {adapter.name}: {result.get('message', 'no answer')}")
        self._device = result["device"]
        self._queue = lib.wgpuDeviceGetQueue(self._device)
        self._layouts: dict[tuple[tuple[bool, ...], int], tuple[Any, Any]] = {}

    def pointers(self) -> tuple[int, int, int]:
        """See ``DeviceHandle``."""
        address = lambda handle: int(ffi.cast("uintptr_t", handle))  # noqa: E731
        return address(self._device), address(self._queue), address(get_wgpu_instance())

    def _layout(self, accesses: tuple[bool, ...], uniform_bytes: int) -> tuple[Any, Any]:
        key = (accesses, uniform_bytes)
        if key not in self._layouts:
            count = len(accesses) + bool(uniform_bytes)
            entries = ffi.new("WGPUBindGroupLayoutEntry[]", count)
            for i, written in enumerate(accesses):
                entries[i].binding = i
                entries[i].visibility = 4
                entries[i].buffer.type = (
                    lib.WGPUBufferBindingType_Storage if written else lib.WGPUBufferBindingType_ReadOnlyStorage
                )
                entries[i].buffer.minBindingSize = 16  # a vec4 of words; blocks are never smaller
            if uniform_bytes:
                last = entries[len(accesses)]
                last.binding = len(accesses)
                last.visibility = 4
                last.buffer.type = lib.WGPUBufferBindingType_Uniform
                last.buffer.hasDynamicOffset = 1
                last.buffer.minBindingSize = uniform_bytes
            descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *")
            descriptor.entryCount = count
            descriptor.entries = entries
            group = lib.wgpuDeviceCreateBindGroupLayout(self._device, descriptor)
            groups = ffi.new("WGPUBindGroupLayout[]", [group])
            pipeline = ffi.new("WGPUPipelineLayoutDescriptor *")
            pipeline.bindGroupLayoutCount = 1
            pipeline.bindGroupLayouts = groups
            self._layouts[key] = (group, lib.wgpuDeviceCreatePipelineLayout(self._device, pipeline))
        return self._layouts[key]

    def create_pipeline(self, code: str, accesses: tuple[bool, ...], uniform_bytes: int) -> tuple[int, int]:
        """See ``DeviceHandle``."""
        group, layout = self._layout(accesses, uniform_bytes)
        keep_code, view = _view(code.encode())
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        source.code = view
        module_descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        module_descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        module = lib.wgpuDeviceCreateShaderModule(self._device, module_descriptor)
        if module == ffi.NULL:
            return 0, 0
        keep_entry, entry = _view(b"main")
        descriptor = ffi.new("WGPUComputePipelineDescriptor *")
        descriptor.layout = layout
        descriptor.compute.module = module
        descriptor.compute.entryPoint = entry
        pipeline = lib.wgpuDeviceCreateComputePipeline(self._device, descriptor)
        lib.wgpuShaderModuleRelease(module)
        del keep_code, keep_entry
        return int(ffi.cast("uintptr_t", pipeline)), int(ffi.cast("uintptr_t", group))


def open(adapter: AdapterInfo, limits: dict[str, int], callbacks: tuple[int, int]) -> Device:
    """See ``Implementation``."""
    return Device(adapter, limits, callbacks)


def wheel_version() -> str:
    """Version of the ``wgpu`` wheel."""
    return version("wgpu")
