"""Result files with samples drawn around known truths, for tests of what reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from torch_webgpu.bench import names
from torch_webgpu.bench.schema import Environment, Measurement, Run, Target, write

GPU = Target(
    kind="webgpu", implementation="wgpu", version="27.0.4", adapter="NVIDIA H200", adapter_kind="discrete", backend="Vulkan",
    driver="580.159.04", features=("subgroup", "timestamp-query"), clocks={"graphics": 1980},
)  # fmt: skip
DAWN = GPU.model_copy(update={"implementation": "dawn", "version": "0.3.0"})
NULL = DAWN.model_copy(update={"implementation": "dawn-null", "adapter": "Null", "adapter_kind": "null", "backend": "Null"})
FIREFOX = Target(
    kind="browser", implementation="firefox", version="153", adapter="llvmpipe", adapter_kind="cpu", backend="Vulkan"
)
CUDA = Target(
    kind="cuda", implementation="torch", version="2.11", adapter="NVIDIA H200", adapter_kind="discrete", backend="CUDA"
)
MACHINE = Environment(
    system="Linux-6.1", cpu="Xeon", cores=16, memory=1 << 37, versions={"torch": "2.11.0", "wgpu": "0.32.0"}, load=0.2
)
COUNTS = (1, 10, 100, 1000)


class Maker:
    """A run in the making; all samples come from one generator."""

    def __init__(self, seed: int = 0, spread: float = 0.02, runs: int = 30) -> None:
        self.generator, self.spread, self.runs = np.random.default_rng(seed), spread, runs
        self.targets: list[Target] = []
        self.measurements: list[Measurement] = []

    def samples(self, value: float, spread: float | None = None) -> list[float]:
        """Around a value."""
        noise = self.generator.standard_normal(self.runs) * (self.spread if spread is None else spread)
        return [float(v) for v in value * np.exp(noise)]

    def add(
        self, target: Target, experiment: str, workload: str, method: str, metric: str, unit: str,
        samples: Sequence[float] | float, notes: Sequence[str] = (), **parameters: Any,
    ) -> None:  # fmt: skip
        """A measurement; a number stands for samples around it."""
        if target not in self.targets:
            self.targets.append(target)
        drawn = self.samples(samples) if isinstance(samples, float | int) else list(samples)
        fields: dict[str, Any] = {
            "experiment": experiment, "workload": workload, "method": method, "target": self.targets.index(target),
            "parameters": parameters, "metric": metric, "unit": unit, "samples": drawn, "notes": list(notes),
        }  # fmt: skip
        self.measurements.append(Measurement(**fields))

    def line(
        self, target: Target, method: str, slope: float, intercept: float, metric: str = names.WALL, **more: Any
    ) -> None:
        """n dispatches for several n."""
        for n in COUNTS:
            self.add(target, "dispatch", "empty", method, metric, "us", intercept + slope * n, n=n, **more)

    def run(self, **fields: Any) -> Run:
        """The run."""
        values: dict[str, Any] = {
            "run": f"synthetic{self.generator.integers(1 << 40):012x}",
            "created": datetime(2026, 12, 1, tzinfo=timezone.utc) + timedelta(minutes=int(self.generator.integers(600))),
            "command": ["torch-webgpu", "bench"], "complete": True, "environment": MACHINE,
            "targets": self.targets, "measurements": self.measurements,
        }  # fmt: skip
        return Run(**{**values, **fields})

    def write(self, path: Path, **fields: Any) -> Run:
        """The run, in a file."""
        run = self.run(**fields)
        write(run, path)
        return run


def dispatch(seed: int = 0) -> Maker:
    """Three targets and a browser whose wait is a tick of 104 ms."""
    make = Maker(seed)
    for target, naive, slope, wait in ((GPU, 134.0, 15.0, 90.0), (DAWN, 1320.0, 13.5, 800.0), (NULL, 1.4, 0.96, 0.5)):
        make.add(target, "dispatch", "empty", names.WAITED, names.WALL, "us", naive, n=1)
        make.add(target, "dispatch", "empty", names.UNWAITED, names.HOST, "us", slope * 1.05, n=1)
        make.line(target, names.SEQUENTIAL, slope, wait)
        make.line(target, names.SEQUENTIAL, slope * 0.93, wait * 0.1, names.HOST)
        make.line(target, names.PASSES, slope * 0.5, wait)
        make.line(target, names.ONE_PASS, slope * 0.17, wait)
        make.line(target, names.ONE_PASS, slope * 0.1, wait * 0.1, names.HOST)
        if target is not NULL:
            make.line(target, names.EAGER, slope * 0.2 + 4, wait)
            make.line(target, names.PLAN, slope * 0.18, wait)
            for bindings in (1, 2, 4, 8):
                make.line(target, names.ONE_PASS, slope * (0.17 + 0.01 * bindings), wait, bindings=bindings)
            for i, phase in enumerate(names.PHASE_ORDER):
                make.add(target, "dispatch", "empty", names.PHASES, phase, "us", 0.3 + 0.4 * i)
    make.line(FIREFOX, names.SEQUENTIAL, 200.0, 104_000.0)
    make.add(FIREFOX, "dispatch", "empty", names.WAITED, names.WALL, "us", 104_200.0, n=1)
    make.add(FIREFOX, "dispatch", "empty", names.UNWAITED, names.HOST, "us", 6.0, n=1)
    return make


#: Layers of `x + 1.0` and of a decode step, µs: GPU, queue, driver, API, C++, Python.
OP_LAYERS = {"wgpu": (1.2, 0.8, 2.0, 0.5, 3.0, 2.0), "dawn": (1.3, 0.7, 1.5, 0.4, 3.5, 1.8)}
STEP_LAYERS = {"wgpu": (900.0, 40.0, 30.0, 8.0, 45.0, 9.0), "dawn": (880.0, 50.0, 25.0, 7.0, 50.0, 8.0)}
STEP = f"{names.DECODE_STEP}, tiny"


def overhead(seed: int = 1) -> Maker:
    """An op and a decode step from the inside out on three targets, and launches of both on CUDA."""
    make = Maker(seed, spread=0.004)

    def line(target: Target, workload: str, method: str, counts: Sequence[int], **slopes: float) -> None:
        for metric, slope in slopes.items():
            for n in counts:
                make.add(target, "overhead", workload, method, metric, "us", 20 + slope * n, n=n)

    for workload, layers, counts in (("x + 1.0", OP_LAYERS, (10, 100, 900)), (STEP, STEP_LAYERS, (1, 2, 8))):
        for target in (GPU, DAWN):
            gpu, queue, driver, api, core, python = layers[target.implementation]
            record, encode = 0.6 * core, 0.4 * core + driver + api
            line(target, workload, names.CALLS_ALONE, counts, host=driver + api, wall=driver + api + gpu)
            for method, host in ((names.FROM_CPP, record), (names.FROM_PYTHON, record + python)):
                done = host + encode + gpu + queue
                line(target, workload, method, counts, host=host, submitted=host + encode, wall=done)
            line(target, workload, names.FROM_CPP, counts, gpu=gpu)
            line(target, workload, names.OVERLAPPED, counts, wall=max(record + python, encode, gpu))
        line(NULL, workload, names.CALLS_ALONE, counts, host=layers["dawn"][3], wall=layers["dawn"][3])
    for i, stage in enumerate(names.STAGE_ORDER):
        make.add(GPU, "overhead", "x + 1.0", names.STAGES, stage, "us", 0.2 + 0.1 * i)
    for method, wall in ((names.CUDA_GRAPH, 1.5), (names.FROM_CPP, 3.5), (names.FROM_PYTHON, 5.0)):
        line(CUDA, "x + 1.0", method, (10, 100, 900), wall=wall, host=wall)
    for method, wall in ((names.CUDA_GRAPH, 400.0), (names.FROM_PYTHON, 900.0)):
        line(CUDA, STEP, method, (1, 2, 8), wall=wall, host=wall)
    return make


def fusion(seed: int = 2) -> Maker:
    """RMSNorm, and an argmax whose means are reversed by one cold sample."""
    make = Maker(seed)
    for target in (GPU, DAWN):
        for name, count, value in (("by hand, 6", 6, 60.0), ("by hand, 1", 1, 40.0), ("eager", 6, 66.0)):
            make.add(target, "fusion", "rms_norm", name, names.DISPATCHES, "count", [float(count)], width=896)
            make.add(target, "fusion", "rms_norm", name, names.WALL, "us", value, width=896, calls=1, submits="one a call")
        for level, value in (("none", 61.0), ("full", 41.0)):
            name = f"compiled, {level}"
            make.add(target, "fusion", "rms_norm", name, names.WALL, "us", value, width=896, calls=1, submits="one a call")
        cold = [*make.samples(52.0)[1:], 20_000.0]
        for name, samples in (("logits read back", cold), ("eager", make.samples(63.0))):
            more: dict[str, Any] = {"vocabulary": 151936, "calls": 1, "submits": "one a call"}
            make.add(target, "fusion", "argmax", name, names.WALL, "us", samples, **more)
    for name, value in (("eager", 22.0), ("torch.compile", 21.0)):
        make.add(CUDA, "fusion", "rms_norm", name, names.WALL, "us", value, width=896, calls=1, submits="one a call")
    return make


def llm(seed: int = 3) -> Maker:
    """One model at two levels of fusion, and on CUDA in two dtypes."""
    make = Maker(seed)
    for target, none, full in ((GPU, 410.0, 938.0), (DAWN, 380.0, 880.0)):
        for level, rate, dispatches in (("none", none, 1011), ("full", full, 135)):
            more: dict[str, Any] = {"dtype": "float32", "fusion": level, "prompt": 16}
            make.add(target, "llm", "Qwen2.5-0.5B", "compiled", names.RATE, "tokens/s", rate, **more)
            make.add(target, "llm", "Qwen2.5-0.5B", "compiled", names.TOKEN, "ms", 1e3 / rate, **more)
            make.add(target, "llm", "Qwen2.5-0.5B", "compiled", names.TTFT, "ms", 6.0, **more)
            make.add(target, "llm", "Qwen2.5-0.5B", "compiled", names.MEMORY, "bytes", [2.1e9], **more)
            make.add(target, "llm", "Qwen2.5-0.5B", "compiled", names.DISPATCHES, "count", [float(dispatches)], **more)
    for dtype, rate in (("float32", 222.0), ("float16", 637.0)):
        make.add(CUDA, "llm", "Qwen2.5-0.5B", "reduce-overhead", names.RATE, "tokens/s", rate, dtype=dtype, prompt=16)
    return make


def vision(seed: int = 4) -> Maker:
    """One model."""
    make = Maker(seed)
    for target, value in ((GPU, 2.1), (CUDA, 1.9)):
        make.add(target, "vision", "ViT-S/14", "compiled", names.WALL, "ms", value, dtype="float32")
    return make


def power(seed: int = 5, measured: bool = True) -> Maker:
    """Energy of a decode, or the reason for none."""
    make = Maker(seed)
    notes = [] if measured else ["NVML does not answer: no library."]
    make.add(GPU, "power", "Qwen2.5-0.5B", "compiled", names.RATE, "tokens/s", 900.0, notes)
    if measured:
        make.add(GPU, "power", "Qwen2.5-0.5B", "compiled", names.ENERGY, "J", 0.21)
        make.add(GPU, "power", "Qwen2.5-0.5B", "compiled", names.IDLE, "W", 75.0)
    return make


def everything(folder: Path) -> None:
    """A file of each, two dispatch runs, and one that was interrupted."""
    dispatch().write(folder / "dispatch.json")
    dispatch(7).write(folder / "dispatch-again.json")
    for make in (overhead, fusion, vision, power):
        make().write(folder / f"{make.__name__}.json")
    llm().write(folder / "llm.json", complete=False)


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts ``torch-webgpu bench``, with SIGINT as at a terminal."""
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = 'torch-webgpu'\n"
        "from torch_webgpu.cli import app; app()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, "bench", *arguments],
        env={**os.environ, "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
