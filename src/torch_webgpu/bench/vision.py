"""``bench vision``: whole vision models, each way to run one in a process of its own; outputs are checked before timing.

``python -m torch_webgpu.bench.vision`` is such a process: the job comes as JSON on its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .child import UnsuitableError, run_child, tell
from .names import DISPATCHES, MEMORY, WALL
from .recorder import Recorder
from .schema import Absence, Measurement, Parameter, Run, Unit

#: Largest difference to float32 on the CPU, relative to its largest output.
TOLERANCE = {"float32": 1e-3, "float16": 5e-2}
LEVELS = ("none", "pointwise", "full")
PLACES = ("webgpu", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class VisionJob:
    """One way to run one model.

    Attributes:
        model: of ``vision_models.MODELS``.
        method: ``eager``, ``compiled`` (webgpu) or ``torch.compile`` (Inductor).
        small: a small picture, and a small model where there is a choice.
    """

    model: str
    device: str
    method: str
    implementation: str = ""
    fusion: str = ""
    dtype: str = "float32"
    small: bool = False
    warmup: int = 5
    runs: int = 30

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Of its measurements."""
        fusion: dict[str, Parameter] = {"fusion": self.fusion} if self.fusion else {}
        return {"dtype": self.dtype, "batch": 1, **({"small": True} if self.small else {}), **fusion}

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.model}: " + ", ".join(
            p for p in (self.implementation or self.device, self.method, self.fusion, self.dtype) if p
        )

    def absence(self, reason: str) -> Absence:
        """That it could not be measured."""
        return Absence(
            experiment="vision",
            workload=self.model,
            method=self.method,
            implementation=self.implementation or "torch",
            parameters={**self.parameters, "device": self.device},
            reason=reason,
        )


def jobs(
    models: tuple[str, ...],
    implementations: tuple[str, ...],
    places: tuple[str, ...],
    dtypes: tuple[str, ...],
    small: bool,
    warmup: int,
    runs: int,
) -> Iterator[VisionJob]:
    """All that is to be measured, in order."""
    for model in models:
        for dtype in dtypes:
            common: dict[str, Any] = {"dtype": dtype, "small": small, "warmup": warmup, "runs": runs}
            for name in implementations if "webgpu" in places else ():
                yield VisionJob(model, "webgpu", "eager", name, **common)
                for level in LEVELS:
                    yield VisionJob(model, "webgpu", "compiled", name, level, **common)
            for device in (p for p in places if p != "webgpu"):
                yield VisionJob(model, device, "eager", **common)
                if device != "mps":
                    yield VisionJob(model, device, "torch.compile", **common)


def finished(job: VisionJob, run: Run) -> bool:
    """Whether a run has the job's time, or why there is none."""
    absent = job.absence("")
    if any(a.model_copy(update={"reason": ""}) == absent for a in run.absent):
        return True
    return any(
        (m.experiment, m.workload, m.method, m.metric, m.parameters)
        == ("vision", job.model, job.method, WALL, job.parameters)
        and (run.target_of(m).kind, run.target_of(m).implementation) == (job.device, job.implementation or "torch")
        for m in run.measurements
    )


def run_all(
    wanted: list[VisionJob],
    recorder: Recorder,
    begin: Callable[[int, int, VisionJob], None] = lambda i, n, job: None,
    done: Callable[[VisionJob, str | None], None] = lambda job, reason: None,
    limit: float | None = None,
) -> None:
    """Measures every job that the run lacks."""
    for i, job in enumerate(wanted):
        if finished(job, recorder.run):
            continue
        begin(i, len(wanted), job)
        settings = {"TORCH_WEBGPU_IMPL": job.implementation, "TORCH_WEBGPU_FUSION": job.fusion}
        environment = {**os.environ, **{k: v for k, v in settings.items() if v}}
        reason = run_child(__name__, json.dumps(asdict(job)), environment, recorder, job.absence, limit)
        done(job, reason)


# ---------------------------------------------------------------------------------------------------- in the child


def measure(job: VisionJob) -> None:
    """Checks and times; tells the parent."""
    import torch

    from .targets import missing, peak_memory, reset_peak_memory, target_of, wait
    from .vision_models import load_vision

    if (why := missing(job.device)) is not None:
        raise UnsuitableError(why)
    tell("target", target_of(job.device).model_dump(mode="json"))
    model, picture, note = load_vision(job.model, job.small)
    with torch.inference_mode():
        expected = model(picture)
        dtype = getattr(torch, job.dtype)
        model, x = model.to(job.device, dtype), picture.to(job.device, dtype)
        how: dict[str, Any] = {"backend": "webgpu"} if job.device == "webgpu" else {}
        call = model if job.method == "eager" else torch.compile(model, **how)
        reset_peak_memory(job.device)
        start = time.perf_counter()
        found = call(x).float().cpu()
        first = time.perf_counter() - start
        largest, off = float(expected.abs().max()), float((found - expected).abs().max())
        if not off <= TOLERANCE[job.dtype] * largest:
            raise UnsuitableError(f"wrong output: off by {off:.3g} where the CPU's reaches {largest:.3g}; not timed")
        notes = [
            note,
            f"off by {off / largest:.1e} of the CPU's largest output in float32",
            f"picture {list(picture.shape)}",
        ]
        samples = []
        for _ in range(job.warmup + job.runs):
            wait(job.device)
            start = time.perf_counter()
            call(x)
            wait(job.device)
            samples.append((time.perf_counter() - start) * 1e3)
        _keep(job, WALL, "ms", samples[job.warmup :], notes, samples[: job.warmup])
        _keep(job, "first run", "s", [first], ["compiles what is compiled"])
        if job.device == "webgpu":
            from .fusion import counted

            _keep(job, DISPATCHES, "count", [float(counted(lambda: call(x))[0])], [])
        if (peak := peak_memory(job.device)) is not None:
            _keep(job, MEMORY, "bytes", [float(peak)], [])


def _keep(
    job: VisionJob, metric: str, unit: Unit, samples: list[float], notes: list[str], warmup: list[float] | None = None
) -> None:
    found = Measurement(
        experiment="vision",
        workload=job.model,
        method=job.method,
        target=0,
        parameters=job.parameters,
        metric=metric,
        unit=unit,
        samples=samples,
        warmup=warmup or [],
        notes=notes,
    )
    tell("measurement", found.model_dump(mode="json"))


def main() -> None:
    """Reads the job, measures it, or tells why not."""
    from ..errors import WebGPUError

    job = VisionJob(**json.loads(sys.stdin.read()))
    try:
        measure(job)
    except (UnsuitableError, WebGPUError) as e:
        tell("absent", job.absence(str(e)).model_dump(mode="json"))


if __name__ == "__main__":
    main()
