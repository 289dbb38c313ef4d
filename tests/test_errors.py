"""Every kind of failure is a Python exception that says what to do, and the process lives on."""

# torch.webgpu and its like are made at run time.
# mypy: disable-error-code="attr-defined"
from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from child import IMPLEMENTATIONS, compiled, output_of, run_python

import torch_webgpu
from torch_webgpu import runtime


def test_hierarchy() -> None:
    for name in torch_webgpu.__all__:
        error = getattr(torch_webgpu, name)
        if isinstance(error, type):
            assert issubclass(error, torch_webgpu.WebGPUError)
            assert issubclass(error, RuntimeError)
            assert error.__doc__


@pytest.mark.parametrize("elements", [2**50, 2**40])
def test_out_of_memory(elements: int) -> None:
    kept = torch.ones(3, device="webgpu")
    with pytest.raises(torch.OutOfMemoryError, match="largest buffer is") as caught:
        torch.empty(elements, device="webgpu")
    assert isinstance(caught.value, torch_webgpu.OutOfMemoryError)
    assert isinstance(caught.value, torch_webgpu.WebGPUError)
    assert str(elements * 4) in str(caught.value)
    assert (kept + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
def test_dtypes_the_device_has_not(dtype: torch.dtype) -> None:
    advice = "float32" if dtype == torch.float64 else "view_as_real"
    one = torch.ones(2, dtype=dtype)
    ways: list[Any] = [
        lambda: torch.ones(2, dtype=dtype, device="webgpu"),
        lambda: torch.empty(2, dtype=dtype, device="webgpu"),
        lambda: one.to("webgpu"),
        lambda: one.webgpu(),
        lambda: torch.tensor([1.0, 2.0], dtype=dtype, device="webgpu"),
        lambda: torch.zeros(2, device="webgpu").to(dtype),
        lambda: torch.zeros(2, dtype=dtype).new_zeros(2, device="webgpu"),
        lambda: torch.nn.Linear(2, 2).to(dtype).to("webgpu"),
    ]
    for way in ways:
        with pytest.raises(TypeError, match=advice) as caught:
            way()
        assert isinstance(caught.value, torch_webgpu.UnsupportedDTypeError)
    assert torch.ones(2, device="webgpu").add(1).tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_rare_dtypes(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="it has float32"):
        torch.empty(2, dtype=dtype, device="webgpu")


def test_mixed_devices_name_the_op() -> None:
    x, host = torch.ones(2, 2, device="webgpu"), torch.ones(2, 2)
    for name, call in {
        "add": lambda: x + host,
        "sub": lambda: host - x,
        "mul": lambda: x.mul_(host),
        "where": lambda: torch.where(x > 0, x, host),
        "maximum": lambda: torch.maximum(host, x),
    }.items():
        with pytest.raises(RuntimeError, match=name) as caught:
            call()
        assert "webgpu" in str(caught.value)
        assert "cpu" in str(caught.value)
    assert (x + torch.tensor(2.0)).tolist() == [[3, 3], [3, 3]]  # scalars may come from the CPU


def test_shader_errors_show_the_lines() -> None:
    code = "@compute @workgroup_size(1)\nfn main() {\n  let x: i32 = nonsense;\n}"
    with pytest.raises(torch_webgpu.ShaderError) as caught:
        runtime.create_pipeline(code, (True,), 1, "my kernel")
    assert "my kernel" in str(caught.value)
    assert "nonsense" in str(caught.value)
    assert "   3 |   let x: i32 = nonsense;" in str(caught.value)
    assert (torch.ones(2, device="webgpu") + 1).tolist() == [2, 2]
    torch.webgpu.synchronize()


def test_validation_errors_come_at_the_next_synchronisation() -> None:
    x = torch.ones(4, device="webgpu")
    torch.webgpu.synchronize()
    runtime.device().create_pipeline("not WGSL at all", (True,), 256)  # past the check that create_pipeline makes
    with pytest.raises(torch_webgpu.ValidationError):
        torch.webgpu.synchronize()
    torch.webgpu.synchronize()  # said once
    assert (x + 1).tolist() == [2, 2, 2, 2]
    runtime.device().create_pipeline("not WGSL at all", (True,), 256)
    with pytest.raises(torch_webgpu.ValidationError):
        (x + 2).cpu()
    assert (x + 2).tolist() == [3, 3, 3, 3]


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nothing_is_printed(implementation: str) -> None:
    code = """
        import torch, torch_webgpu
        from torch_webgpu import runtime
        x = torch.ones(4, device="webgpu")
        for call in (
            lambda: runtime.create_pipeline("not WGSL", (True,), 1, "bad"),
            lambda: (runtime.device().create_pipeline("not WGSL", (True,), 256), torch.webgpu.synchronize()),
            lambda: torch.empty(2**50, device="webgpu"),
            lambda: torch.ones(2, dtype=torch.float64, device="webgpu"),
            lambda: x + torch.ones(4),
        ):
            try:
                call()
            except RuntimeError as e:
                print(type(e).__name__)
            print((x + 1).tolist()[0])
    """
    result = run_python(code, TORCH_WEBGPU_IMPL=implementation)
    assert result.code == 0, result.err
    assert result.err == ""
    names = ["ShaderError", "ValidationError", "OutOfMemoryError", "UnsupportedDTypeError", "RuntimeError"]
    assert result.out.split() == [word for name in names for word in (name, "2.0")]


LOST = """
    import ctypes, gc, torch, torch_webgpu
    from torch_webgpu import _C, runtime

    class View(ctypes.Structure):
        _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]

    def report():  # what the library does when the driver takes the device away
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, View, ctypes.c_void_p, ctypes.c_void_p)
        kind(_C.callbacks()[1])(None, 1, View(b"GPU fell off", 12), None, None)

    def destroy():
        device = runtime.device()
        if device.adapter.implementation == "wgpu":
            from wgpu.backends.wgpu_native._ffi import lib as library
        else:
            from pydawn import webgpu as library
        library.wgpuDeviceDestroy(device._device)

    x = torch.ones(4, device="webgpu")
    y = x + 1
    z = torch.ones(40000, device="webgpu")
    z.cpu()
    pending = x * 3
    double = torch.compile(lambda t: t * 2 + t, backend="webgpu")
    double(x)
    event = torch.webgpu.current_stream().record_event()
    {how}()
    for call in (
        lambda: pending.cpu(),
        lambda: x + 1,
        lambda: x.add_(1),
        lambda: x.tolist(),
        lambda: x[0].item(),
        lambda: torch.exp(x),
        lambda: torch.ones(3).to("webgpu"),
        lambda: torch.ones(100000).to("webgpu"),
        lambda: z.copy_(torch.zeros(40000)),
        lambda: torch.empty(10**6, device="webgpu"),
        lambda: torch.webgpu.synchronize(),
        lambda: repr(x),
    ):
        for _ in range(2):
            try:
                call()
                print("no error")
            except torch_webgpu.WebGPUError as e:
                print(type(e).__name__, "torch.webgpu.reset()" in str(e))
    print((torch.ones(2) + 1).tolist())
    old = [x, y, z, pending, torch.nn.Parameter(x)]
    for _ in range(2):
        torch.webgpu.reset()  # the second time there is nothing to do
        new = torch.arange(4.0, device="webgpu")
        print((new + 1).tolist(), torch.mm(new[None], new[:, None]).item(), double(new).tolist())
        torch.webgpu.synchronize()
        for call in (
            lambda: x + new,
            lambda: new.copy_(x),
            lambda: x.copy_(new),
            lambda: x.fill_(1),
            lambda: x.copy_(torch.ones(4)),
            lambda: z.copy_(torch.ones(40000)),
            lambda: z.cpu(),
            lambda: double(x),
        ):
            try:
                call()
                print("no error")
            except torch_webgpu.DeviceLostError as e:
                print("make it again" in str(e))
        print(new.tolist())
    before = torch.webgpu.memory_allocated()
    del x, y, z, pending, old, call
    gc.collect()
    print(torch.webgpu.memory_allocated() < before, torch.webgpu.memory_reserved() >= torch.webgpu.memory_allocated())
    torch.webgpu.empty_cache()
    big = torch.ones(300, 300, device="webgpu")
    print((big @ big).sum().item())
    {how}()
    try:
        (big + 1).cpu()
    except torch_webgpu.DeviceLostError:
        torch.webgpu.reset()
    print(torch.ones(5, device="webgpu").sum().item())
"""


@pytest.mark.once
@pytest.mark.parametrize("how", ["report", "destroy"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_lost_device_raises_until_it_is_reset(implementation: str, how: str) -> None:
    lines = output_of(LOST.replace("{how}", how), TORCH_WEBGPU_IMPL=implementation).splitlines()
    opened = ["[1.0, 2.0, 3.0, 4.0] 14.0 [0.0, 3.0, 6.0, 9.0]", *["True"] * 8, "[0.0, 1.0, 2.0, 3.0]"]
    assert lines[:25] == ["DeviceLostError True"] * 24 + ["[2.0, 2.0]"]
    assert lines[25:] == [*opened, *opened, "True True", "27000000.0", "5.0"]


@pytest.mark.once
@pytest.mark.parametrize("repeat", [1, 3])
def test_a_device_lost_before_a_submit(tmp_path: Path, repeat: int) -> None:
    """wgpu-native panics there, which must not end the process."""
    native = importlib.import_module("torch_webgpu.runtime.wgpu_native").lib_path
    library = compiled(tmp_path, "losing_submit", "a library that loses the device", native)
    code = f"""
        import ctypes, torch, torch_webgpu
        from torch_webgpu import runtime
        from torch_webgpu.runtime import wgpu_native

        wgpu_native.lib_path = {library!r}
        losing = ctypes.CDLL(wgpu_native.lib_path)
        x = torch.ones(4, device="webgpu")
        for _ in range({repeat}):
            torch.webgpu.synchronize()
            ctypes.c_void_p.in_dll(losing, "doomed").value = runtime.device().pointers()[0]
            try:
                print((x * 3).tolist())
            except torch_webgpu.DeviceLostError as e:
                print("torch.webgpu.reset()" in str(e))
            torch.webgpu.reset()
            x = torch.ones(4, device="webgpu")
            print((x * 3).tolist())
    """
    lines = output_of(code, TORCH_WEBGPU_IMPL="wgpu").splitlines()
    assert lines == ["True", "[3.0, 3.0, 3.0, 3.0]"] * repeat


@pytest.mark.parametrize("length", [2**32, 2**32 + 1, 2**40])
def test_sizes_beyond_32_bits(length: int) -> None:
    """Expanded tensors have them without the memory: a kernel must not see their low bits only."""
    x = torch.ones(1, device="webgpu").expand(length)
    last = torch.tensor([length - 1], device="webgpu")
    for op in (
        lambda: x.sum(),
        lambda: x.mean(),
        lambda: x.any(),
        lambda: x.argmax(),
        lambda: x.norm(),
        lambda: x.var(),
        lambda: x.cumsum(0),
        lambda: x.topk(2),
        lambda: x @ x,
        lambda: x[last],
        lambda: x.gather(0, last),
        lambda: torch.zeros(4, device="webgpu").scatter_add_(0, (last * 0).expand(length), x),
    ):
        with pytest.raises(torch_webgpu.LimitError, match="32 bits"):
            op()
    assert x[-3:].sum().item() == 3
    assert x[length - 1].item() == 1


def test_errors_in_views_and_shapes_are_pytorchs_own() -> None:
    x = torch.ones(2, 3, device="webgpu")
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(4, device="webgpu")
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        x.view(7)
    with pytest.raises(IndexError):
        x[5]
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(2, dtype=torch.int64, device="webgpu").add_(1.5)
    with pytest.raises(RuntimeError, match="storage of size"):
        x.as_strided((100,), (1,)).add(1)
    with pytest.raises(RuntimeError):
        x.new_empty((2,), layout=torch.sparse_coo)


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_first_wait_after_freed_tensors_reports_nothing(implementation: str) -> None:
    """The buffer that kernels report errors in may be a recycled one, which recorded commands still write."""
    code = """
        import torch
        made = [torch.full((4,), 7, dtype=torch.int32, device="webgpu") for _ in range(8)]
        del made
        torch.webgpu.synchronize()
        print("ok")
    """
    assert output_of(code, TORCH_WEBGPU_IMPL=implementation) == "ok"


def test_assertions_of_values() -> None:
    """``torch._assert_async`` and what PyTorch builds on it, eagerly and in a plan: no wait, no fallback."""
    before = torch_webgpu.fallbacks()
    for value in (torch.tensor([True]), torch.tensor(-2.5), torch.tensor([1 << 40]), torch.tensor(float("nan"))):
        torch._assert_async(value.to("webgpu"), "never")
    torch.webgpu.synchronize()
    for value in (torch.tensor(False), torch.tensor([0]), torch.tensor(-0.0, dtype=torch.float16)):
        torch._assert_async(value.to("webgpu"), "it is {nothing}")
        with pytest.raises(RuntimeError, match=r"it is \(nothing\)"):
            torch.webgpu.synchronize()
    with pytest.raises(RuntimeError, match="single"):
        torch._assert_async(torch.zeros(1, device="webgpu"))
        torch.webgpu.synchronize()
    with pytest.raises(RuntimeError, match=r"one element, got \[2\]"):
        torch._assert_async(torch.ones(2, device="webgpu"), "never")
    encode = torch.compile(torch.nn.functional.one_hot, backend="webgpu")
    classes = torch.tensor([2, 0], device="webgpu")
    assert encode(classes, 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        encode(classes, 2).cpu()
    assert encode(classes, 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert torch_webgpu.fallbacks() == before
