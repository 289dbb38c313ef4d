"""Known ways to measure something else than one thinks, each set for the instrument itself (docs/instrument.md)."""

from __future__ import annotations

import timeit
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_files import CUDA, GPU, Maker, dispatch
from test_bench_models import TINY, Kept
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from torch_webgpu import _C
from torch_webgpu.bench import clocks, llm_job, models, names, peaks
from torch_webgpu.bench import dispatch as bench_dispatch
from torch_webgpu.bench.bounds import all_impossible
from torch_webgpu.bench.cells import Cell, measure
from torch_webgpu.bench.environment import environment
from torch_webgpu.bench.fusion import submit_interval
from torch_webgpu.bench.fusion_cases import argmax_case, matmul_case
from torch_webgpu.bench.llm import jobs
from torch_webgpu.bench.loop import METHODS, Device, Loop, Sample, adapter_of
from torch_webgpu.bench.recorder import Recorder
from torch_webgpu.bench.report import build, lines
from torch_webgpu.bench.results import load
from torch_webgpu.bench.sampling import Budget
from torch_webgpu.bench.schema import Target
from torch_webgpu.bench.targets import torch_target
from torch_webgpu.cli import app
from torch_webgpu.errors import WebGPUError
from torch_webgpu.runtime import device

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def opened() -> Device:
    return Device(adapter_of(device().adapter.implementation))


def product(microseconds: float, target: Target = GPU, dtype: str = "float32") -> Maker:
    """A file that says how long a product of 4096 x 4096 matrices took: 1.4e11 operations."""
    make = Maker(seed=int(microseconds), spread=0)
    make.add(target, "fusion", "matmul", "eager", names.WALL, "us", microseconds, dtype=dtype)
    m = make.measurements[0]
    make.measurements[0] = m.model_copy(update={"work": {"flops": 2.0 * 4096**3, "bytes": 12.0 * 4096**2}})
    return make


def test_f01_pytorchs_timer_waits() -> None:
    x = torch.ones(8, device="webgpu")
    with submit_interval(1024):  # nothing goes to the queue by itself
        _C.synchronize()
        before = _C.stats()["submits"]
        timeit.timeit(lambda: x + 1, number=3)
        assert _C.stats()["submits"] == before
        Timer("x + 1", globals={"x": x}).timeit(3)
        assert _C.stats()["submits"] > before


def test_f02_what_no_device_can_do_is_refused(tmp_path: Path) -> None:
    fast = product(8.0)  # 17 PFLOP/s
    recorder = Recorder(tmp_path / "run.json", ["fusion"])
    recorder.target(GPU)
    recorder.add(fast.measurements[0])
    assert not recorder.run.measurements
    (note,) = recorder.run.notes
    assert "refused: fusion, matmul, eager" in note and "6.7e+13 (by its datasheet)" in note
    recorder.add(product(3000.0).measurements[0])
    assert len(recorder.run.measurements) == 1
    # a file that holds one all the same
    fast.write(tmp_path / "fast.json")
    product(3000.0, GPU.model_copy(update={"version": "2"})).write(tmp_path / "slow.json")
    told = CliRunner().invoke(app, ["bench", "validate", str(tmp_path / "fast.json")])
    assert told.exit_code == 1 and "something was not waited for" in told.output.replace("\n", " ")
    assert CliRunner().invoke(app, ["bench", "validate", str(tmp_path / "slow.json")]).exit_code == 0
    results = load([tmp_path])
    assert [s.now.samples[0] for s in results.find("fusion")] == [3000.0, 3000.0] and len(results.impossible) == 1
    assert any("Above what the device can do" in w for w in build._warnings(results))


def test_f02_bounds_by_dtype_and_target() -> None:
    def is_impossible(microseconds: float, target: Target, dtype: str = "float32") -> bool:
        return bool(all_impossible(product(microseconds, target, dtype).run()))

    assert is_impossible(500.0, GPU) and not is_impossible(500.0, CUDA)  # TF32
    assert not is_impossible(500.0, GPU, "float16") and is_impossible(100.0, CUDA, "float16")
    unknown = GPU.model_copy(update={"adapter": "Some GPU"})
    assert not is_impossible(1.0, unknown)
    weak = unknown.model_copy(update={"peak": {"flops": 1e12, "bytes": 1e11}})
    assert is_impossible(30_000.0, weak) and not is_impossible(150_000.0, weak)
    rate = Maker(spread=0)
    rate.add(GPU, "llm", "m", "generator", names.RATE, "tokens/s", 10_000.0)
    for size, wrong in ((2.0e9, True), (1.0e8, False)):  # a small model may stay in a cache
        m = rate.measurements[0].model_copy(update={"work": {"bytes": size}})
        assert bool(all_impossible(rate.run(measurements=[m]))) is wrong


def test_f02_work_is_what_the_computation_needs() -> None:
    assert matmul_case(3, 5, 7).work() == {"flops": 2.0 * 3 * 5 * 7, "bytes": 4.0 * (3 * 7 + 7 * 5)}
    assert argmax_case(64).work() == {"bytes": 256.0}
    job = next(jobs(replace(TINY, protocols=("modern",), places=("cpu",))))
    measured = llm_job.Measured(job, models.load_model("tiny", None, "float32", None), Kept(), 0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        measured.model(torch.tensor([[1]]), use_cache=False)
    assert 0.9 < measured.token_work()["flops"] / counter.get_total_flops() <= 1


@pytest.mark.parametrize(("place", "on_cpu"), [("cpu", True), ("webgpu", False)])
def test_f02_peaks_can_be_measured(place: str, on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "_LARGE", 1 << 22)
    monkeypatch.setattr(peaks, "_INVOCATIONS", 1 << 12)
    found = peaks.measured(place, on_cpu)
    assert found.keys() == {"flops", "bytes"} and min(found.values()) > 1e6


def test_f03_compiling_and_first_runs_are_in_no_other_figure() -> None:
    kept = Kept()
    wanted = replace(TINY, implementations=(device().adapter.implementation,), levels=("full",), dtypes=("float32",))
    for protocol in ("compile", "modern"):
        made = jobs(replace(wanted, protocols=(protocol,), places=("webgpu",)))
        job = next(j for j in made if j.method == "generator")
        llm_job.measure(replace(job, plans="none" if protocol == "compile" else "").request, kept)
    assert not kept.notes
    assert all(len(kept.of(m, plans="none")["generator"]) == 1 for m in (names.PROMPT_READY, names.STEP_READY))
    assert len(kept.of("first run", protocol="modern")["generator"]) == 1
    (rate,) = (m for m in kept.found if m.metric == names.RATE)
    assert len(rate.warmup) == 1 and len(rate.samples) == 3
    # F07: what goes to the queue for a token
    counts = {m: kept.of(m)["generator"] for m in (names.DISPATCHES, names.SUBMITS, names.BIND_GROUPS)}
    assert counts[names.DISPATCHES][0] > 10 and counts[names.SUBMITS][0] >= 1 and counts[names.BIND_GROUPS] == [0.0]


class Nvml:
    """NVML's clocks as its Python package has them."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        """As there."""

    def __init__(self) -> None:
        self.mhz = 345

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:  # noqa: N802
        return i

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return self.mhz * kind

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        return 40

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        raise self.NVMLError("Not Supported")


def test_f04_clocks_before_and_after(tmp_path: Path) -> None:
    nvml = Nvml()
    before = clocks.by_nvml("NVIDIA H200", nvml)
    assert before == {"graphics": 345, "memory": 690, "most graphics": 1980, "temperature": 40}
    assert clocks.by_nvml("NVIDIA A10", nvml) == {}
    recorder = Recorder(tmp_path / "run.json", ["fusion"])
    number = recorder.target(GPU.model_copy(update={"clocks": before}))
    recorder.add(product(3000.0).measurements[0])
    nvml.mhz = 1755
    recorder.clocks_after(number, clocks.by_nvml("NVIDIA H200", nvml))
    recorder.finish()
    sources = build.sources(load([tmp_path]))
    assert any("graphics 345 → 1755, memory 690 → 3510, most graphics 1980" in str(block) for block in sources.blocks)


def test_f04_idle_gaps(opened: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(bench_dispatch.time, "sleep", slept.append)
    kept = Kept()
    bench_dispatch._gaps(kept, opened, 0, "gaps")
    assert [m.parameters["gap_ms"] for m in kept.found] == [0, 10, 100, 1000] and set(slept) == {0, 0.01, 0.1, 1}


def test_f05_timestamps(opened: Device) -> None:
    if opened.timestamps:
        sample = Loop(opened).run(names.ONE_PASS, 20, timestamps=True)
        assert sample.gpu is not None and sample.gpu >= 0 and sample.step > 0

    class Reset:
        """A loop whose timestamps were reset once."""

        def run(self, *_: Any, **__: Any) -> Sample:
            return Sample(1.0, 1.0, 0.5, dropped=1, step=1000)

    cell = bench_dispatch._timed_cell(Reset(), names.PASSES, 4)  # type: ignore[arg-type]
    assert [cell.run() for _ in range(2)] == [{"gpu": 0.5}] * 2
    notes = " ".join(cell.notes())
    assert "in steps of 1000 ns" in notes and "2 passes with a negative difference" in notes


def test_f06_quotient_and_slope_stand_side_by_side(tmp_path: Path) -> None:
    dispatch().write(tmp_path / "dispatch.json")
    results = load([tmp_path])
    cost = next(c for c in lines.costs(results) if c.source.target.implementation == "wgpu")
    slope, naive, ratio = cost.of(names.SEQUENTIAL), cost.naive, cost.ratio
    assert slope and naive and ratio
    assert slope.value == pytest.approx(15, rel=0.05) and naive.value == pytest.approx(134, rel=0.05)
    assert ratio.value == pytest.approx(134 / 15, rel=0.1)
    labels = [h.label for h in build._dispatch_headlines(results, lines.costs(results))]
    assert any("naive figure" in label for label in labels) and any("in a sequence" in label for label in labels)


def test_f08_with_and_without_reading_back(opened: Device) -> None:
    assert {names.WAITED, names.READ_BACK} <= set(METHODS)
    loop = Loop(opened)
    for method in (names.WAITED, names.READ_BACK):
        loop.run(method, 3)
    loop.verify()
    assert {"logits read back"} == set(argmax_case(64).others)


def test_f09_what_did_not_run_is_noticed(opened: Device) -> None:
    loop = Loop(opened)
    loop.run(names.ONE_PASS, 5)
    loop.verify()
    loop.dispatched += 1
    with pytest.raises(WebGPUError, match="6 dispatches were made, but the kernel counted 5"):
        loop.verify()


def test_f10_adapter_wait_and_tuner_are_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    target = torch_target("webgpu")
    assert target.adapter == device().adapter.name and (target.adapter_kind == "cpu") == (device().adapter.kind == "cpu")
    assert target.wait_us is not None and target.wait_us > 0
    assert target.tuned.keys() == {"own", "shipped"}
    assert peaks.published(target.adapter) or target.peak.keys() == {"flops", "bytes"}
    monkeypatch.setenv("TORCH_WEBGPU_LIMITS", "adapter")
    assert environment().variables["TORCH_WEBGPU_LIMITS"] == "adapter"
    assert torch_target("cpu").wait_us is not None


def test_samples_stop_within_a_budget() -> None:
    budget = Budget(warmup=2, most=30, least=10, seconds=1.0, precision=0.01)
    steady, wild = [100.0 + 0.01 * i for i in range(30)], [100.0, 150.0] * 15
    assert budget.enough(wild[:9], 99.0) is None and budget.enough(wild[:10], 0.5) is None
    assert budget.enough(wild, 0.5) == ""
    assert budget.enough(wild[:12], 1.2) == "12 of 30 samples: they took 1.2 s, and 1 s were allowed"
    assert "the interval of the median is within 1 % of it" in (budget.enough(steady[:10], 0.1) or "")
    kept, calls = Kept(), []

    def run() -> dict[str, float]:
        calls.append(0)
        return {names.WALL: 1.0 + len(calls) % 2}

    cell = Cell("slow", "m", {}, (names.WALL,), run)
    measure(kept, "fusion", 0, [cell], "slow", Budget(warmup=2, most=30, least=10, seconds=0.0))
    (found,) = kept.found
    assert (len(found.warmup), len(found.samples), len(calls)) == (2, 10, 12)
    assert found.notes[0].startswith("10 of 30 samples: they took")
