"""The device in PyTorch: torch.webgpu, torch.accelerator, moving things to it, and the environment variables."""

# torch.webgpu and its like are made at run time.
# mypy: disable-error-code="attr-defined,union-attr,operator"
from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from child import IMPLEMENTATIONS, NO_DRIVERS, output_of, run_python

import torch_webgpu
from torch_webgpu import decompositions
from torch_webgpu.runtime.base import SPEC_LIMITS


@pytest.mark.once
def test_import_torch_alone_finds_the_device() -> None:
    code = """
        import torch
        x = torch.tensor([1.0, 2.0], device="webgpu")
        print((x + x).tolist(), x.device, torch.webgpu.is_available())
    """
    assert output_of(code) == "[2.0, 4.0] webgpu:0 True"


@pytest.mark.once
def test_autoload_can_be_turned_off() -> None:
    code = "import torch; print(hasattr(torch, 'webgpu')); import torch_webgpu; print(torch.webgpu.device_count())"
    assert output_of(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split() == ["False", "1"]


def test_torch_webgpu_module() -> None:
    assert torch.webgpu.is_available()
    assert torch.webgpu.is_initialized()
    assert torch.webgpu.device_count() == 1
    assert torch.webgpu.current_device() == 0
    torch.webgpu.set_device(0)
    torch.webgpu.set_device("webgpu:0")
    with torch.webgpu.device(0):
        torch.webgpu.synchronize()
    with pytest.raises(RuntimeError, match="one device"):
        torch.webgpu.set_device(1)
    properties = torch.webgpu.get_device_properties()
    assert properties.name == torch.webgpu.get_device_name()
    assert properties.implementation in IMPLEMENTATIONS
    assert properties.limits["maxComputeInvocationsPerWorkgroup"] >= 256
    assert properties.total_memory >= 2**28
    assert properties.name in repr(properties)
    assert torch.webgpu.get_device_capability()["maxBufferSize"] == properties.total_memory
    assert torch.webgpu.is_bf16_supported()


def test_torch_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("webgpu")
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    with torch.accelerator.device_index(0):
        assert torch.ones(2, device="webgpu").device.index == 0
    with pytest.raises(RuntimeError, match="one device"):
        torch.accelerator.set_device_index(1)
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.bfloat16 in dtypes
    assert torch.float64 not in dtypes
    stream = torch.accelerator.current_stream()
    stream.synchronize()
    assert torch.Stream("webgpu") == stream


def test_ways_to_the_device() -> None:
    x = torch.arange(4.0)
    made = torch.tensor([0.0, 1, 2, 3], device="webgpu")
    for y in (x.to("webgpu"), x.webgpu(), x.to(torch.device("webgpu", 0)), made):
        assert y.is_webgpu
        assert y.device == torch.device("webgpu:0")
        assert y.get_device() == 0
        assert y.tolist() == [0, 1, 2, 3]
    assert not x.is_webgpu
    assert y.to("webgpu") is y
    assert y.cpu().device.type == "cpu"
    assert y.type() == "torch.webgpu.FloatTensor"
    with torch.device("webgpu"):
        assert torch.zeros(2).is_webgpu
    assert y.new_ones(2).is_webgpu
    assert torch.zeros_like(x, device="webgpu").is_webgpu
    with pytest.raises(RuntimeError, match="one device per process"):
        torch.ones(2, device="webgpu:1")
    with pytest.raises(RuntimeError, match="one device per process"):
        x.to("webgpu:1")
    with pytest.raises(TypeError, match="cpu"):
        y.numpy()


@pytest.mark.parametrize("how", ["to", "webgpu"])
def test_modules_move(how: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    want = {k: v.clone() for k, v in module.state_dict().items()}
    moved = module.to("webgpu") if how == "to" else module.webgpu()
    assert moved is module
    tensors = [*module.parameters(), *module.buffers()]
    assert all(t.is_webgpu for t in tensors)
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in module.parameters())
    assert all(torch.equal(v.cpu(), want[k]) for k, v in module.state_dict().items())
    assert module.half()[0].weight.dtype == torch.float16
    assert module.cpu()[0].weight.device.type == "cpu"


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_no_adapter(implementation: str) -> None:
    code = """
        import torch, torch_webgpu
        print(torch.webgpu.is_available(), torch.accelerator.is_available(), torch.webgpu.device_count())
        for _ in range(2):
            try:
                torch.ones(2, device="webgpu")
            except torch_webgpu.NoAdapterError as e:
                print("mesa-vulkan-drivers" in str(e))
        print(torch.ones(2) + 1)
    """
    out = output_of(code, TORCH_WEBGPU_IMPL=implementation, TORCH_WEBGPU_ADAPTER=None, **NO_DRIVERS)
    assert out.splitlines() == ["False False 0", "True", "True", "tensor([2., 2.])"]


BLOCK = """
    import sys
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {blocked}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    sys.meta_path.insert(0, Block())
    import torch, torch_webgpu
    print(torch.webgpu.is_available())
    try:
        print(torch.webgpu.get_device_properties().implementation)
    except torch_webgpu.MissingImplementationError as e:
        print(e)
"""


@pytest.mark.once
@pytest.mark.parametrize("implementation, package", [("wgpu", "wgpu"), ("dawn", "pydawn")])
def test_missing_implementation(implementation: str, package: str) -> None:
    lines = output_of(BLOCK.format(blocked={package}), TORCH_WEBGPU_IMPL=implementation).splitlines()
    assert lines[0] == "False"
    other = "dawn" if implementation == "wgpu" else "wgpu"
    assert "pip install" in lines[1]
    assert f"TORCH_WEBGPU_IMPL={other}" in lines[1]


@pytest.mark.once
def test_auto_takes_the_implementation_that_is_there() -> None:
    assert output_of(BLOCK.format(blocked={"wgpu"}), TORCH_WEBGPU_IMPL="auto").split() == ["True", "dawn"]
    assert output_of(BLOCK.format(blocked={"pydawn"}), TORCH_WEBGPU_IMPL="auto").split() == ["True", "wgpu"]


PROPERTIES = "import torch; p = torch.webgpu.get_device_properties(); print(p.implementation, p.name, sep='|')"


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_implementation_and_adapter_by_name_and_index(implementation: str) -> None:
    first = output_of(PROPERTIES, TORCH_WEBGPU_IMPL=implementation, TORCH_WEBGPU_ADAPTER="0")
    name = first.split("|")[1]
    assert first.split("|")[0] == implementation
    part = name[1:6].upper()
    assert output_of(PROPERTIES, TORCH_WEBGPU_IMPL=implementation, TORCH_WEBGPU_ADAPTER=part) == first
    result = run_python(PROPERTIES, TORCH_WEBGPU_IMPL=implementation, TORCH_WEBGPU_ADAPTER="no such thing")
    assert result.code == 1
    assert "NoAdapterError" in result.err
    assert name in result.err


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_default_limits(implementation: str) -> None:
    code = """
        import torch, torch_webgpu
        print({k: v for k, v in torch.webgpu.get_device_properties().limits.items()})
        x = torch.ones(1000, device="webgpu")
        print((x + 1)[:2].tolist())
    """
    lines = output_of(code, TORCH_WEBGPU_IMPL=implementation, TORCH_WEBGPU_LIMITS="default").splitlines()
    limits = eval(lines[0])
    assert {k: limits[k] for k in SPEC_LIMITS} == SPEC_LIMITS
    assert lines[1:] == ["[2.0, 2.0]"]


@pytest.mark.once
@pytest.mark.parametrize("name", ["IMPL", "FALLBACK", "LIMITS", "DEBUG"])
def test_bad_settings_are_named(name: str) -> None:
    result = run_python("import torch_webgpu", TORCH_DEVICE_BACKEND_AUTOLOAD="0", **{f"TORCH_WEBGPU_{name}": "rubbish"})
    assert result.code == 1
    assert f"ValueError: TORCH_WEBGPU_{name}='rubbish' is not one of" in result.err


def test_debug_mode_computes_the_same() -> None:
    code = "import torch; x = torch.arange(5.0, device='webgpu'); print(((x * 2 + 1) / 2).tolist())"
    assert output_of(code, TORCH_WEBGPU_DEBUG="1") == "[0.5, 1.5, 2.5, 3.5, 4.5]"


FALLBACK = """
    import warnings, torch, torch_webgpu
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (3, 4, 4):
            print(torch.cholesky_inverse(2 * torch.eye(n, device="webgpu"))[0, :2].tolist())
    print([str(w.message).split()[0] for w in caught if "WebGPU kernel" in str(w.message)])
    print(torch_webgpu.fallbacks())
"""


def test_fallback_warns_once_an_op_and_counts() -> None:
    lines = output_of(FALLBACK).splitlines()
    assert [line for line in lines if line.startswith("[0")] == ["[0.25, 0.0]"] * 3
    assert eval(lines[-2]) == ["aten::cholesky_inverse.default"]
    assert eval(lines[-1]) == {"aten::cholesky_inverse": 3}


def test_circular_decompositions_run_on_the_cpu() -> None:
    op = torch.ops.aten.special_airy_ai.out
    run: Any = decompositions._unless_circular("special_airy_ai.out", op, lambda *args, **kwargs: run(*args, **kwargs))
    x, out = torch.tensor([0.5, -2.0]), torch.empty(0, device="webgpu")
    before = torch_webgpu.fallbacks().get("aten::special_airy_ai.out", 0)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert run(x.to("webgpu"), out=out) is out
        torch.testing.assert_close(out.cpu(), torch.special.airy_ai(x))
    assert torch_webgpu.fallbacks()["aten::special_airy_ai.out"] == before + 2


def test_fallback_error() -> None:
    code = """
        import torch, torch_webgpu
        try:
            torch.cholesky_inverse(torch.eye(3, device="webgpu"))
        except torch_webgpu.FallbackError as e:
            print(isinstance(e, NotImplementedError), "aten::cholesky_inverse" in str(e))
        print(torch_webgpu.fallbacks())
    """
    assert output_of(code, TORCH_WEBGPU_FALLBACK="error").splitlines() == ["True True", "{}"]


@pytest.mark.once
def test_a_cpu_rasteriser_is_announced_unless_it_was_chosen() -> None:
    kind = torch_webgpu.runtime.device().adapter.kind
    said = "CPU rasteriser" in run_python(PROPERTIES, TORCH_WEBGPU_ADAPTER=None).err
    assert said == (kind == "cpu")
    assert "CPU rasteriser" not in run_python(PROPERTIES, TORCH_WEBGPU_ADAPTER="0").err


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_fork(implementation: str) -> None:
    code = """
        import multiprocessing, torch, torch_webgpu

        def work(queue, x):
            try:
                queue.put((x + 1).tolist())
            except torch_webgpu.WebGPUError as e:
                queue.put(f"{type(e).__name__} {torch.webgpu._is_in_bad_fork()} {'spawn' in str(e)}")

        def run(x):
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            child = context.Process(target=work, args=(queue, x))
            child.start()
            print(queue.get())
            child.join()
            print(child.exitcode)

        def in_child(queue):
            queue.put((torch.ones(2, device="webgpu") + 1).tolist())

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue,))
        child.start()
        print(queue.get())  # the parent has not opened the device yet: the child may
        child.join()
        run(torch.ones(2))  # a worker that keeps to the CPU
        x = torch.ones(2, device="webgpu")
        run(x)
        run(torch.ones(2))
        print((x + 2).tolist())
    """
    assert output_of(code, TORCH_WEBGPU_IMPL=implementation).splitlines() == [
        "[2.0, 2.0]",
        "[2.0, 2.0]",
        "0",
        "DeviceLostError True True",
        "0",
        "[2.0, 2.0]",
        "0",
        "[3.0, 3.0]",
    ]


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_bare_fork_leaves_with_its_own_status(implementation: str) -> None:
    """The child inherits a device with recorded work, uses it (an error), drops its tensors and exits like any process."""
    code = """
        import os, signal, sys, torch, torch_webgpu
        x = torch.ones(1000, device="webgpu")
        assert (x + 1).sum().item() == 2000
        y = x * 2  # recorded, perhaps not submitted
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            for use in (lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(2, device="webgpu"), torch.webgpu.synchronize):
                try:
                    use()
                    sys.exit(1)
                except torch_webgpu.DeviceLostError as e:
                    assert "fork" in str(e)
            torch.webgpu.empty_cache()
            del x, y
            print("said in the child")
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), y.sum().item())
    """
    assert output_of(code, TORCH_WEBGPU_IMPL=implementation).splitlines() == ["said in the child", "7 2000.0"]
