"""``bench llm``: language models, each way to run one in a process of its own, so that none meets what another left.

Four protocols. ``paper``: that of arXiv 2604.02344, five tokens of prompt and 50 new ones through one ``generate``, with and
without a cache, in float32. ``modern``: prefill and decode apart, at several contexts, dtypes, quantisations.
``compile``: the time until prompt and step are compiled, with nothing on disk and with what the first left there.
``kernels``: each kind of launch of the step by itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .llm_job import (
    COMPILED,
    EAGER,
    GENERATOR,
    GRAPHS,
    INDUCTOR,
    ONNX,
    UNFUSED,
    Job,
)
from .names import LAUNCH, RATE, STEP_READY
from .onnx_engine import UnavailableError, check_provider
from .places import missing
from .schema import Run
from .session import Session

LEVELS = ("none", "pointwise", "full")
PROTOCOLS = ("paper", "modern", "compile", "kernels")
PLANS = ("none", "stored")
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
    seconds: float = 10.0

    def reduced(self) -> Settings:
        """What shows in a short time whether it works: one level, one dtype, a short context."""
        return replace(self, levels=self.levels[-1:], dtypes=self.dtypes[:1], contexts=(16,))

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
                layers=s.layers, seconds=s.seconds,
            )  # fmt: skip
            ways = {"paper": _paper, "modern": _modern, "compile": _plans, "kernels": _plans}[protocol](s, base)
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
        here = replace(base, dtype="float16" if quantised else kind, quantize=kind if quantised else "")
        for name in s.implementations:
            on = replace(here, device="webgpu", implementation=name)
            yield replace(on, method=EAGER, cache="dynamic")
            for level in s.levels:
                yield replace(on, method=GENERATOR, cache="static", fusion=level)
        if quantised:
            continue
        for device, methods in (("cpu", (INDUCTOR,)), ("cuda", (GRAPHS, UNFUSED)), ("mps", ())):
            yield replace(here, device=device, method=EAGER, cache="dynamic")
            for method in methods:
                yield replace(here, device=device, method=method, cache="static")
        if kind == "float32":
            for device in ("cpu", "webgpu"):
                yield replace(here, device=device, method=ONNX, cache="dynamic")


def _plans(s: Settings, base: Job) -> Iterator[Job]:
    """The fullest fusion alone; a job of ``compile`` is run once for each of ``PLANS``."""
    for kind in s.dtypes:
        quantised = kind in ("int8", "int4")
        for name in s.implementations:
            yield replace(
                base, device="webgpu", implementation=name, method=GENERATOR, cache="static", fusion=s.levels[-1],
                dtype="float16" if quantised else kind, quantize=kind if quantised else "",
            )  # fmt: skip


def finished(job: Job, run: Run) -> bool:
    """Whether a run has what the job measures last, at each of its contexts, or with each of ``PLANS``."""
    implementation = job.implementation or (ONNX if job.method == ONNX else "torch")
    wanted, optional = job.parameters, ("fusion", "quantize", "layers")
    last = {"compile": STEP_READY, "kernels": LAUNCH}.get(job.protocol, RATE)
    prompts, plans = set(), set()
    for m in run.measurements:
        target = run.target_of(m)
        what = (m.experiment, m.workload, m.method, m.metric, target.implementation, target.kind)
        same = all(m.parameters.get(k) == wanted.get(k) for k in (*wanted, *optional))
        if same and what == ("llm", job.model, job.method, last, implementation, job.device):
            prompts.add(m.parameters["prompt"])
            plans.add(m.parameters.get("plans"))
    if job.protocol == "compile":
        return plans >= set(PLANS)
    return prompts >= set(job.contexts) if job.contexts else bool(prompts)


def run_all(settings: Settings, session: Session) -> None:
    """Measures every job that the run lacks; notes why where one cannot be."""
    wanted = list(jobs(settings))
    for i, job in enumerate(wanted):
        session.progress(job.title, i, len(wanted))
        if (why := _missing(job)) is not None:
            session.note(why)
        elif not finished(job, session.run):
            _work(job, session)


def _work(job: Job, session: Session) -> None:
    if job.protocol != "compile":
        session.work("llm_job:measure", job.request, job.environment())
        return
    with tempfile.TemporaryDirectory() as folder:  # what the first leaves there the second finds
        for plans in PLANS:
            this = replace(job, plans=plans)
            session.work("llm_job:measure", this.request, this.environment() | {"TORCH_WEBGPU_CACHE": folder})


def _missing(job: Job) -> str | None:
    """Why no job of the kind can be measured here, which is said once for all of them."""
    if job.method == ONNX:
        try:
            check_provider(job.device)
        except UnavailableError as e:
            return f"no figures of ONNX Runtime on {job.device}: {e}"
        return None
    why = missing(job.device)
    return None if why is None else f"no figures of PyTorch on {job.device}: {why}"
