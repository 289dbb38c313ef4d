"""torch.profiler on the device: rows of GPU time, the Chrome trace, memory."""

# torch.webgpu is made at run time.
# mypy: disable-error-code="attr-defined"
from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from child import IMPLEMENTATIONS, run_python
from torch.profiler import ProfilerActivity, profile, record_function

import torch_webgpu.runtime

WEBGPU = ProfilerActivity.PrivateUse1


def timed_here() -> bool:
    return "timestamp-query" in torch_webgpu.runtime.device().features


pytestmark = pytest.mark.skipif(not timed_here(), reason="this adapter has no timestamp queries, so there are no GPU times")


def work(x: torch.Tensor) -> torch.Tensor:
    with record_function("my part"):
        y = torch.relu(x @ x)
    return (y + 1).sum()


def of_device(events: Any) -> list[Any]:
    return [e for e in events if e.device_type == torch.autograd.DeviceType.PrivateUse1]


def test_kernels_have_rows_of_gpu_time() -> None:
    x = torch.randn(48, 48, device="webgpu")
    work(x).item()
    with profile() as p:
        work(x).item()
    kernels = of_device(p.events())
    assert [k.name for k in kernels] == ["mm (gemm)", "relu (pointwise)", "add.Tensor (pointwise)", "sum (reduce)"]
    assert all(k.time_range.elapsed_us() > 0 for k in kernels)
    starts = [k.time_range.start for k in kernels]
    assert starts == sorted(starts)
    rows = {e.key: e for e in p.key_averages()}
    for op, kernel in (("aten::mm", "mm (gemm)"), ("aten::relu", "relu (pointwise)"), ("aten::sum", "sum (reduce)")):
        assert rows[op].self_device_time_total == rows[kernel].self_device_time_total > 0
    inside = rows["aten::mm"].device_time_total + rows["aten::relu"].device_time_total
    assert rows["my part"].device_time_total == pytest.approx(inside)
    assert rows["webgpu dispatch"].count == 4
    assert rows["webgpu wait"].count >= 1
    table = p.key_averages().table(sort_by="self_device_time_total")
    assert "Self WEBGPU" in table and "mm (gemm)" in table


def test_gpu_time_is_within_the_time_of_the_host() -> None:
    x = torch.randn(64, 64, device="webgpu")
    work(x).item()
    torch.webgpu.synchronize()
    with profile() as p:
        work(x).item()
    events = p.events()
    kernels = of_device(events)
    dispatches = [e for e in events if e.name == "webgpu dispatch"]
    read = next(e for e in events if e.name == "aten::item")
    for kernel, dispatch in zip(kernels, dispatches, strict=True):
        assert kernel.time_range.start >= dispatch.time_range.end  # nothing runs before it is recorded
    assert kernels[-1].time_range.end <= read.time_range.end + 1  # the number was there only after them


def test_chrome_trace(tmp_path: Path) -> None:
    x = torch.randn(32, 32, device="webgpu")
    with profile(record_shapes=True) as p:
        work(x).item()
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(kernels) == 4 and all(e["ph"] == "X" and e["dur"] > 0 for e in kernels)
    assert all(len(e["args"]["grid"]) == 3 for e in kernels)
    ops = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    assert [ops[e["args"]["External id"]] for e in kernels] == ["aten::mm", "aten::relu", "aten::add", "aten::sum"]
    arrows = {end: sorted(e["id"] for e in events if e.get("cat") == "ac2g" and e["ph"] == end) for end in "sf"}
    assert arrows["s"] == arrows["f"] == [1, 2, 3, 4]
    names = {e["pid"]: e["args"].get("labels") for e in events if e.get("name") == "process_labels"}
    assert names[0] == torch.webgpu.get_device_name()


def test_more_launches_than_a_query_set_holds() -> None:
    x = torch.zeros(64, device="webgpu")
    with profile(activities=[ProfilerActivity.CPU, WEBGPU], acc_events=True) as p:
        for _ in range(5000):
            x = x + 1
        assert x[0].item() == 5000
    kernels = [k for k in of_device(p.events()) if k.name.startswith("add")]
    assert len(kernels) == 5000
    assert all(k.time_range.elapsed_us() >= 0 for k in kernels)
    starts = [k.time_range.start for k in kernels]
    assert starts == sorted(starts)


def test_compiled_plans_have_a_row_and_their_kernels() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()).to("webgpu")
    compiled = torch.compile(layer, backend="webgpu")
    x = torch.randn(4, 16, device="webgpu")
    with torch.no_grad():
        compiled(x)
        with profile() as p:
            compiled(x).cpu()
    events = p.events()
    (plan,) = (e for e in events if e.name.startswith("webgpu::plan"))
    assert len(plan.kernels) == len(of_device(events)) > 0


def test_kernels_are_named_after_the_op_that_runs() -> None:
    """Not after the one that compiled the shader they share."""
    x = torch.ones(8, device="webgpu")
    with profile() as p:
        for _ in range(2):
            torch.ops.aten.mul.Scalar(x, 2.0)
            torch.mul(x, 2.0)
    assert [k.name for k in of_device(p.events())] == ["mul.Scalar (pointwise)", "mul.Tensor (pointwise)"] * 2


def test_device_only_and_cpu_only() -> None:
    x = torch.ones(8, device="webgpu")
    with profile(activities=[WEBGPU]) as p:
        (x + 1).cpu()
    assert [k.name for k in of_device(p.events())] == ["add.Tensor (pointwise)"]
    with profile(activities=[ProfilerActivity.CPU]) as p:
        (x + 1).cpu()
    assert not of_device(p.events())
    assert "aten::add" in {e.name for e in p.events()}
    with torch.autograd.profiler.profile(use_device="webgpu", use_kineto=True) as by_name:
        (x + 1).cpu()
    assert [k.name for k in of_device(by_name.function_events)] == ["add.Tensor (pointwise)"]


def test_without_kineto_each_op_is_waited_for() -> None:
    x = torch.randn(64, 64, device="webgpu")
    with torch.autograd.profiler.profile(use_device="webgpu") as p:
        torch.relu(x @ x)
    times = {e.key: e.device_time_total for e in p.key_averages()}
    assert times["aten::mm"] > 0 and times["aten::relu"] > 0


def test_steps_of_a_schedule(tmp_path: Path) -> None:
    x = torch.ones(8, device="webgpu")
    found = []
    with profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: found.append([k.name for k in of_device(p.events())]),
    ) as p:
        for _ in range(8):
            (x * 2).cpu()
            p.step()
    assert found == [["mul.Tensor (pointwise)"] * 2] * 2


def test_memory_of_the_device() -> None:
    torch.ones(2, device="webgpu")
    with profile(profile_memory=True) as p:
        x = torch.empty(1 << 16, device="webgpu")
        del x
        y = torch.empty(1 << 10, device="webgpu")
    rows = {e.key: e for e in p.key_averages()}
    assert rows["aten::empty"].self_device_memory_usage == (1 << 18) + (1 << 12)
    assert rows["[memory]"].self_device_memory_usage == -(1 << 18)
    del y


def test_launches_of_other_threads_are_shown() -> None:
    """As CUDA's are; PyTorch's own rows are those of the thread that profiles."""
    x = torch.ones(16, device="webgpu")

    def run(op: Any) -> None:
        for _ in range(20):
            op(x)
        torch.webgpu.synchronize()

    with profile() as p:
        threads = [threading.Thread(target=run, args=(op,)) for op in (torch.sin, torch.cos)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    names = [k.name for k in of_device(p.events())]
    assert names.count("sin (pointwise)") == names.count("cos (pointwise)") == 20


def test_nothing_is_timed_afterwards() -> None:
    from torch_webgpu import _C

    x = torch.ones(8, device="webgpu")
    with profile():
        (x + 1).cpu()
    before = _C.stats()["submits"]
    for _ in range(10):
        x = x + 1
    assert x.tolist() == [11.0] * 8
    assert _C.stats()["submits"] - before == 1
    with profile() as p:
        (x * 2).cpu()
    assert [k.name for k in of_device(p.events())] == ["mul.Tensor (pointwise)"]


WITHOUT = """
    import torch
    from torch_webgpu.runtime import base, dawn, wgpu_native
    for module in (base, dawn, wgpu_native):
        if hasattr(module, "WANTED_FEATURES"):
            module.WANTED_FEATURES = ("shader-f16", "subgroups")
    x = torch.ones(4, device="webgpu")
    with torch.profiler.profile() as p:
        (x + 1).cpu()
    print("webgpu dispatch" in {e.name for e in p.events()})
"""


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_without_timestamps_it_says_so(implementation: str) -> None:
    result = run_python(WITHOUT, TORCH_WEBGPU_IMPL=implementation)
    assert result.code == 0, result.err
    assert result.out.split() == ["True"]
    assert "shows no GPU times" in result.err and "has no timestamp queries" in result.err


BEFORE_THE_DEVICE = """
    import torch
    with torch.profiler.profile() as p:
        pass
    with torch.profiler.profile() as p:
        x = torch.ones(4, device="webgpu")
        (x + 1).cpu()
    print([e.name for e in p.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1])
"""


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_it_may_start_before_the_device(implementation: str) -> None:
    result = run_python(BEFORE_THE_DEVICE, TORCH_WEBGPU_IMPL=implementation)
    assert result.code == 0, result.err
    assert eval(result.out) == ["fill_.Scalar (pointwise)", "add.Tensor (pointwise)"]
