"""``bench llm``: language models, each way to run one in a process of its own, so that none meets what another left.

Two protocols. ``paper``: that of arXiv 2604.02344, a prompt of five tokens and 50 new ones through one call of ``generate``,
with and without a cache, in float32. ``modern``: prefill and decode apart, at several contexts, dtypes and quantisations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .child import run_child
from .llm_job import (
    COMPILED,
    EAGER,
    GENERATOR,
    GRAPHS,
    INDUCTOR,
    ONNX,
    Job,
    to_json,
)
from .names import RATE
from .recorder import Recorder
from .schema import Absence, Measurement, Run

LEVELS = ("none", "pointwise", "full")
PROTOCOLS = ("paper", "modern")
#: What ``--on`` takes.
PLACES = ("webgpu", "cpu", "cuda", "mps", "onnxruntime")


@dataclass(frozen=True)
class Settings:
    """What ``bench llm`` measures.

    Attributes:
        models: of ``models.NAMES``.
        path: a model with weights, in place of ``models``.
        implementations: of WebGPU.
        places: of ``PLACES``.
        dtypes: of the modern protocol; ``int8`` and ``int4`` for webgpu alone.
    """

    models: tuple[str, ...]
    path: str | None = None
    implementations: tuple[str, ...] = ("wgpu", "dawn")
    places: tuple[str, ...] = PLACES
    protocols: tuple[str, ...] = PROTOCOLS
    levels: tuple[str, ...] = LEVELS
    dtypes: tuple[str, ...] = ("float32", "float16", "int8", "int4")
    contexts: tuple[int, ...] = (128, 512, 2048)
    new: int = 50
    warmup: int = 5
    runs: int = 30
    layers: int | None = None

    def reduced(self) -> Settings:
        """What shows in a short time whether it works: the smallest model that was asked for, one level, a short context."""
        small = tuple(m for m in self.models if self.path or not m.startswith("Qwen2.5")) or self.models
        return replace(self, models=small[:1], levels=self.levels[-1:], dtypes=self.dtypes[:1], contexts=(16,))

    def check(self) -> None:
        """Whether the contexts fit the models, and the model is there, before anything is started.

        Raises:
            ModelError: for a context that does not fit a model's positions, or a path without a model.
        """
        from ..llm import ModelError
        from .models import positions_of

        for model in self.models:
            most = positions_of(model, self.path)
            for context in self.contexts if "modern" in self.protocols else ():
                if most is not None and context + self.new + 1 > most:
                    raise ModelError(
                        f"{model}: a context of {context} and {self.new} new tokens do not fit its {most} positions; "
                        f"--contexts may go up to {most - self.new - 1}."
                    )


def jobs(s: Settings) -> Iterator[Job]:
    """All that is to be measured, in order."""
    for model in s.models:
        for protocol in s.protocols:
            contexts = s.contexts if protocol == "modern" else ()
            base = Job(
                model, s.path, "", "", protocol=protocol, contexts=contexts, new=s.new, warmup=s.warmup, runs=s.runs,
                layers=s.layers,
            )  # fmt: skip
            ways = _paper(s, base) if protocol == "paper" else _modern(s, base)
            yield from (job for job in ways if (ONNX if job.method == ONNX else job.device) in s.places)


def _paper(s: Settings, base: Job) -> Iterator[Job]:
    for name in s.implementations:
        on = replace(base, device="webgpu", implementation=name)
        for cache in ("none", "dynamic"):
            yield replace(on, method=EAGER, cache=cache)
        for level in s.levels:
            for cache in ("none", "static"):
                yield replace(on, method=COMPILED, cache=cache, fusion=level)
            yield replace(on, method=GENERATOR, cache="static", fusion=level)
    for device in ("cpu", "cuda", "mps"):
        for cache in ("none", "dynamic"):
            yield replace(base, device=device, method=EAGER, cache=cache)
    yield replace(base, device="cpu", method=INDUCTOR, cache="static")
    yield replace(base, device="cuda", method=GRAPHS, cache="static")
    for device in ("cpu", "webgpu"):
        yield replace(base, device=device, method=ONNX, cache="dynamic")


def _modern(s: Settings, base: Job) -> Iterator[Job]:
    for kind in s.dtypes:
        quantised = kind in ("int8", "int4")
        here = replace(base, dtype="float32" if quantised else kind, quantize=kind if quantised else "")
        for name in s.implementations:
            on = replace(here, device="webgpu", implementation=name)
            yield replace(on, method=EAGER, cache="dynamic")
            for level in s.levels:
                yield replace(on, method=GENERATOR, cache="static", fusion=level)
        if quantised:
            continue
        for device, method in (("cpu", INDUCTOR), ("cuda", GRAPHS), ("mps", None)):
            yield replace(here, device=device, method=EAGER, cache="dynamic")
            if method:
                yield replace(here, device=device, method=method, cache="static")
        if kind == "float32":
            for device in ("cpu", "webgpu"):
                yield replace(here, device=device, method=ONNX, cache="dynamic")


def finished(job: Job, run: Run) -> bool:
    """Whether a run has all of a job: a rate at each context, or why there is none."""
    if any(_same_job(a, job, a.implementation) and a.parameters.get("device") == job.device for a in run.absent):
        return True
    found = [m for m in run.measurements if m.metric == RATE and _same_job(m, job, run.target_of(m).implementation)]
    found = [m for m in found if run.target_of(m).kind == job.device]
    if job.protocol == "paper":
        return bool(found)
    return {m.parameters["prompt"] for m in found} >= set(job.contexts)


def _same_job(found: Measurement | Absence, job: Job, implementation: str) -> bool:
    wanted = job.implementation or (ONNX if job.method == ONNX else "torch")
    if (found.experiment, found.workload, found.method, implementation) != ("llm", job.model, job.method, wanted):
        return False
    optional = ("fusion", "quantize", "layers")
    return all(found.parameters.get(k) == v for k, v in job.parameters.items()) and not any(
        k in found.parameters and k not in job.parameters for k in optional
    )


def measure(job: Job, recorder: Recorder, limit: float | None = None) -> str | None:
    """Runs a job in a process of its own and records what it finds.

    Args:
        limit: seconds after which it is ended.

    Returns:
        Why it was not measured, or None.
    """
    module = "torch_webgpu.bench.llm_job"
    return run_child(module, to_json(job), job.environment(), recorder, job.absence, limit)


def run_all(
    settings: Settings,
    recorder: Recorder,
    begin: Callable[[int, int, Job], None] = lambda i, n, job: None,
    done: Callable[[Job, str | None], None] = lambda job, reason: None,
    limit: float | None = None,
) -> Sequence[Job]:
    """Measures every job that the run lacks; returns all of them."""
    wanted = list(jobs(settings))
    for i, job in enumerate(wanted):
        if not finished(job, recorder.run):
            begin(i, len(wanted), job)
            done(job, measure(job, recorder, limit))
    return wanted
