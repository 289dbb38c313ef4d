"""``bench vision``: whole vision models, each way to run one in a process of its own; outputs are checked before timing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from .names import DISPATCHES, MEMORY, WALL
from .places import missing
from .schema import Measurement, Parameter, Quantity, Run, Unit, Work
from .session import Session, Sink

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

    @property
    def request(self) -> dict[str, Any]:
        """For its process."""
        return {**asdict(self), "title": self.title}

    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        settings = {"TORCH_WEBGPU_IMPL": self.implementation, "TORCH_WEBGPU_FUSION": self.fusion}
        return {"TRANSFORMERS_VERBOSITY": "error"} | {k: v for k, v in settings.items() if v}


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
    """Whether a run has the job's time."""
    return any(
        (m.experiment, m.workload, m.method, m.metric, m.parameters)
        == ("vision", job.model, job.method, WALL, job.parameters)
        and (run.target_of(m).kind, run.target_of(m).implementation) == (job.device, job.implementation or "torch")
        for m in run.measurements
    )


def run_all(wanted: Sequence[VisionJob], session: Session) -> None:
    """Measures every job that the run lacks; notes why where one cannot be."""
    for i, job in enumerate(wanted):
        session.progress(job.title, i, len(wanted))
        if (why := missing(job.device)) is not None:
            session.note(f"no figures of PyTorch on {job.device}: {why}")
        elif not finished(job, session.run):
            session.work("vision:measure", job.request, job.environment())


# ---------------------------------------------------------------------------------------------------- in its process


def measure(request: dict[str, Any], sink: Sink) -> None:
    """Checks and times a job; for ``worker``."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from .places import peak_memory, reset_peak_memory, wait
    from .targets import torch_target
    from .vision_models import load_vision

    job = VisionJob(**{k: v for k, v in request.items() if k != "title"})
    keep = partial(_keep, job, sink, sink.target(torch_target(job.device)))
    model, picture, note = load_vision(job.model, job.small)
    with torch.inference_mode():
        with FlopCounterMode(display=False) as counter:
            expected = model(picture)
        work: Work = {"flops": float(counter.get_total_flops())}
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
            sink.note(f"{job.title}: wrong output: off by {off:.3g} where the CPU's reaches {largest:.3g}; not timed")
            return
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
        keep(WALL, "ms", samples[job.warmup :], notes, samples[: job.warmup], work)
        keep("first run", "s", [first], ["compiles what is compiled"])
        if job.device == "webgpu":
            from .fusion import counted

            keep(DISPATCHES, "count", [float(counted(lambda: call(x))[0])], [])
        if (peak := peak_memory(job.device)) is not None:
            keep(MEMORY, "bytes", [float(peak)], [])


def _keep(
    job: VisionJob,
    sink: Sink,
    target: int,
    metric: str,
    unit: Unit,
    samples: list[float],
    notes: list[str],
    warmup: Sequence[float] = (),
    work: Work | None = None,
) -> None:
    about = Quantity(
        experiment="vision",
        workload=job.model,
        method=job.method,
        target=target,
        parameters=job.parameters,
        metric=metric,
    )
    if not sink.has(about):
        more: dict[str, Any] = {"warmup": list(warmup), "work": work or {}, "notes": notes}
        sink.add(Measurement(**about.model_dump(), unit=unit, samples=samples, **more))
