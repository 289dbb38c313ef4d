"""The structs that csrc/api.h declares lie in memory as both WebGPU wheels declare them."""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import Any

import pytest

VIEW = {"data": 0, "length": 8}
#: Offsets of csrc/api.h (which asserts them too), by the WebGPU names of the fields; "" is the size of the struct.
LAYOUT: dict[str, dict[str, int]] = {
    "WGPUStringView": {**VIEW, "": 16},
    "WGPUBufferDescriptor": {"nextInChain": 0, "label": 8, "usage": 24, "size": 32, "mappedAtCreation": 40, "": 48},
    "WGPUBindGroupEntry": {
        "nextInChain": 0,
        "binding": 8,
        "buffer": 16,
        "offset": 24,
        "size": 32,
        "sampler": 40,
        "textureView": 48,
        "": 56,
    },
    "WGPUBindGroupDescriptor": {"nextInChain": 0, "label": 8, "layout": 24, "entryCount": 32, "entries": 40, "": 48},
    "WGPUBufferMapCallbackInfo": {
        "nextInChain": 0,
        "mode": 8,
        "callback": 16,
        "userdata1": 24,
        "userdata2": 32,
        "": 40,
    },
    "WGPUFuture": {"id": 0, "": 8},
    "WGPUFutureWaitInfo": {"future": 0, "completed": 8, "": 16},
}
#: Where Dawn's wheel has a newer struct of the layout under another name.
DAWN_NAMES = {"WGPUBufferMapCallbackInfo": "WGPUBufferMapCallbackInfo2"}
USAGES = {"MapRead": 1, "CopySrc": 4, "CopyDst": 8, "Uniform": 64, "Storage": 128}
ERROR_TYPES = {"Validation": 2, "OutOfMemory": 3, "Internal": 4}


@pytest.mark.parametrize("struct", LAYOUT)
def test_wgpu_native_lays_structs_out_alike(struct: str) -> None:
    from wgpu.backends.wgpu_native._ffi import ffi

    fields = dict(LAYOUT[struct])
    assert ffi.sizeof(struct) == fields.pop("")
    assert {field: ffi.offsetof(struct, field) for field in fields} == fields


@pytest.mark.parametrize("struct", LAYOUT)
def test_dawn_lays_structs_out_alike(struct: str) -> None:
    from pydawn import webgpu

    kind: Any = getattr(webgpu, DAWN_NAMES.get(struct, struct))
    fields = dict(LAYOUT[struct])
    assert ctypes.sizeof(kind) == fields.pop("")
    assert {field: getattr(kind, field).offset for field in fields} == fields


def test_api_h_asserts_the_same_offsets() -> None:
    from pathlib import Path

    header = (Path(__file__).parents[1] / "csrc" / "api.h").read_text()
    ours = {
        "WGPUStringView": "StringView",
        "WGPUBufferDescriptor": "BufferDescriptor",
        "WGPUBindGroupEntry": "BindGroupEntry",
        "WGPUBindGroupDescriptor": "BindGroupDescriptor",
        "WGPUBufferMapCallbackInfo": "MapCallbackInfo",
        "WGPUFuture": "Future",
        "WGPUFutureWaitInfo": "FutureWaitInfo",
    }
    snake = {
        "nextInChain": "next",
        "mappedAtCreation": "mapped_at_creation",
        "textureView": "texture_view",
        "entryCount": "entry_count",
        "userdata1": "user1",
        "userdata2": "user2",
    }
    for struct, fields in LAYOUT.items():
        for field, offset in fields.items():
            name = ours[struct]
            want = f"offsetof({name}, {snake.get(field, field)}) == {offset}" if field else f"sizeof({name}) == {offset}"
            assert want in header, want


def test_enum_values() -> None:
    from pydawn import webgpu
    from wgpu.backends.wgpu_native._ffi import lib

    for name, value in USAGES.items():
        assert getattr(webgpu, f"WGPUBufferUsage_{name}") == value
    for name, value in ERROR_TYPES.items():
        assert getattr(lib, f"WGPUErrorType_{name}") == value
        assert getattr(webgpu, f"WGPUErrorType_{name}") == value
    assert lib.WGPUCallbackMode_AllowSpontaneous == webgpu.WGPUCallbackMode_AllowSpontaneous == 3
    assert webgpu.WGPUCallbackMode_WaitAnyOnly == 1
    assert lib.WGPUMapAsyncStatus_Success == 1
    assert webgpu.WGPUMapAsyncStatus_Success == 1


def test_both_wheels_are_of_the_declared_versions() -> None:
    from torch_webgpu import runtime

    assert version("wgpu").startswith("0.32.")
    assert version("dawn-python") == "0.3.0"
    for name in ("wgpu", "dawn"):
        assert runtime.implementation(name).wheel_version() == version("dawn-python" if name == "dawn" else name)
