"""Energy meters against counters that are known, and a decode measured with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_files import GPU

from torch_webgpu.bench import names, power
from torch_webgpu.bench.meters import NoMeterError, Nvml, Rapl, meters
from torch_webgpu.bench.recorder import Recorder
from torch_webgpu.bench.schema import read

pytestmark = pytest.mark.once


class FakeNvml:
    """NVML as its Python package has it, with counters in millijoules."""

    class NVMLError(Exception):
        """As there."""

    def __init__(self, *gpus: str, counts: bool = True) -> None:
        self.gpus, self.counts, self.millijoules = gpus, counts, 5000

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.gpus:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:  # noqa: N802
        return i

    def nvmlDeviceGetName(self, i: int) -> bytes:  # noqa: N802
        return self.gpus[i].encode()

    def nvmlDeviceGetTotalEnergyConsumption(self, i: int) -> int:  # noqa: N802
        if not self.counts:
            raise self.NVMLError("Not Supported")
        return self.millijoules


def test_nvml_takes_the_gpu_of_the_name() -> None:
    meter = Nvml("NVIDIA H200", FakeNvml("NVIDIA A10", "NVIDIA H200"))
    assert meter.joules() == 5 and "H200" in meter.covers
    refused: tuple[tuple[FakeNvml, str], ...] = (
        (FakeNvml(), "Driver Not Loaded"),
        (FakeNvml("NVIDIA A10"), "shows NVIDIA A10, none of which is NVIDIA H200"),
        (FakeNvml("NVIDIA H200", "NVIDIA H200"), "several of which are NVIDIA H200"),
        (FakeNvml("NVIDIA H200", counts=False), "Not Supported"),
    )
    for library, message in refused:
        with pytest.raises(NoMeterError, match=message):
            Nvml("NVIDIA H200", library)


def package(root: Path, name: str, microjoules: int, range_: int = 1000_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "max_energy_range_uj").write_text(f"{range_}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder


def test_rapl_adds_packages_and_goes_on_past_its_range(tmp_path: Path) -> None:
    one, two = package(tmp_path, "intel-rapl:0", 999_000_000), package(tmp_path, "intel-rapl:1", 0)
    package(tmp_path, "intel-rapl:0:0", 7)  # cores, which the package contains
    meter = Rapl(tmp_path)
    assert meter.joules() == 0
    (one / "energy_uj").write_text("1000000")  # 2 J on, past the range
    (two / "energy_uj").write_text("3000000")
    assert meter.joules() == pytest.approx(5, abs=1e-5)
    with pytest.raises(NoMeterError, match="has no package"):
        Rapl(tmp_path / "none")
    (one / "energy_uj").write_text("secret")
    with pytest.raises(NoMeterError, match="does not answer"):
        Rapl(tmp_path)


def test_on_a_processor_no_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_webgpu.bench.meters.Nvml", lambda adapter: pytest.fail("NVML was asked"))
    found, why = meters("llvmpipe", on_cpu=True)
    assert len(found) + len(why) == 1


class Clock:
    """Time and energy that only advance when something is said to have been done."""

    name, covers = "fake", "a counter of this test"

    def __init__(self) -> None:
        self.now, self.energy = 0.0, 0.0

    def spend(self, seconds: float, watts: float) -> None:
        self.now += seconds
        self.energy += seconds * watts

    def joules(self) -> float:
        return self.energy


def decode_of(clock: Clock) -> power.Decode:
    """10 tokens in 0.1 s at 300 W."""
    return power.Decode("a model", "compiled", 10, lambda: clock.spend(0.1, 300), lambda: None)


def test_idle_power_is_taken_off_and_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(power.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(power, "idle_power", idle_with(clock, power.idle_power))
    recorder = Recorder(tmp_path / "power.json", ["bench", "power"])
    how = power.Protocol(idle=0.5, seconds=1.0, runs=5, warmup=1)
    power.measure(recorder, recorder.target(GPU), decode_of(clock), [clock], [], how)
    found = {m.metric: m for m in read(tmp_path / "power.json").measurements}
    assert found[names.IDLE].samples == pytest.approx([80] * 5) and found[names.POWER].samples == pytest.approx([300] * 5)
    assert found[names.ENERGY].samples == pytest.approx([(300 - 80) * 0.1 / 10] * 5)
    assert found[names.RATE].samples == pytest.approx([100] * 5)
    assert "80 W at idle subtracted" in found[names.ENERGY].notes[0]


def idle_with(clock: Clock, idle: Any) -> Any:
    """The real function, with a sleep that costs 80 W."""
    return lambda found, how: idle(found, how, lambda seconds: clock.spend(seconds, 80))


def test_without_a_meter_the_rate_alone_is_kept_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(power.time, "perf_counter", lambda: clock.now)
    recorder = Recorder(tmp_path / "power.json", ["bench", "power"])
    power.measure(recorder, recorder.target(GPU), decode_of(clock), [], ["RAPL does not answer: no"], power.Protocol(runs=3))
    (m,) = read(tmp_path / "power.json").measurements
    assert m.metric == names.RATE and m.notes == ["No energy: RAPL does not answer: no."]
