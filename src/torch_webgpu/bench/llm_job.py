"""One way to run one language model, measured in a process of its own (``worker``)."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .names import BIND_GROUPS, DISPATCHES, LOADED, MEMORY, RATE, STREAMED, SUBMITS, TOKEN, TTFT, WEIGHTS
from .sampling import Budget
from .schema import Measurement, Parameter, Quantity, Target, Unit, Work
from .session import Sink

EAGER, COMPILED, GENERATOR, INDUCTOR, GRAPHS, UNFUSED, ONNX = (
    "eager", "compiled", "generator", "torch.compile", "reduce-overhead", "a kernel an op", "onnxruntime"
)  # fmt: skip
_STREAMS, _PRECISION = 5, 0.01
_CHECKED = 24  # tokens compared with the CPU's, at most


@dataclass(frozen=True)
class Job:
    """What is measured.

    Attributes:
        model: of ``models.NAMES``, or what a model given by path is called.
        path: name, folder or file of a model with weights; None for those of ``NAMES``.
        device: ``webgpu``, ``cpu``, ``cuda``, ``mps``: PyTorch's, or ONNX Runtime's.
        method: ``eager`` (transformers, op by op), ``compiled`` (transformers' loop over a compiled step), ``generator``
            (the package's loop), ``torch.compile`` (Inductor), ``reduce-overhead`` (with CUDA graphs), ``a kernel an op``
            (those without fusion), ``onnxruntime``.
        implementation: of WebGPU, for device ``webgpu`` and PyTorch.
        quantize: ``int8``, ``int4``, or empty.
        protocol: of ``llm.PROTOCOLS``.
        cache: ``none`` feeds the whole sequence again at each step.
        contexts: tokens of the prompts of the modern protocol.
        layers: the first so many alone.
        seconds: that the samples of a context of the modern protocol may take.
        plans: of the protocol ``compile``: ``none`` or ``stored`` ones are on disk.
    """

    model: str
    path: str | None
    device: str
    method: str
    implementation: str = ""
    fusion: str = ""
    dtype: str = "float32"
    quantize: str = ""
    protocol: str = "paper"
    cache: str = "dynamic"
    contexts: tuple[int, ...] = ()
    new: int = 50
    warmup: int = 5
    runs: int = 30
    layers: int | None = None
    seconds: float = 10.0
    plans: str = ""

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Of its measurements, without the prompt's length."""
        given = {k: getattr(self, k) for k in ("fusion", "quantize", "layers", "plans") if getattr(self, k)}
        return {"dtype": self.dtype, "protocol": self.protocol, "cache": self.cache, "new": self.new, **given}

    @property
    def title(self) -> str:
        """For people."""
        parts = [self.implementation or self.device, self.method, self.fusion, self.quantize or self.dtype]
        return f"{self.model}, {self.protocol}: " + ", ".join(p for p in (*parts, f"{self.cache} cache") if p)

    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        settings = {"TORCH_WEBGPU_IMPL": self.implementation, "TORCH_WEBGPU_FUSION": self.fusion}
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
        return quiet | {k: v for k, v in settings.items() if v}

    @property
    def request(self) -> dict[str, Any]:
        """For its process."""
        return {**asdict(self), "title": self.title}


class UnsuitableError(RuntimeError):
    """A job cannot be measured here, or computes something wrong; the message says why."""


class Measured:
    """Runs a job; what it measures is kept as it comes."""

    def __init__(self, job: Job, loaded: Any, sink: Sink, target: int) -> None:
        self._sink, self._target = sink, target
        self.job, self.loaded, self.model = job, loaded, loaded.model
        self.notes = [loaded.note]
        self.work = _work(loaded.model)
        self.on_cpu = False
        self.length = max((*job.contexts, len(loaded.prompt))) + job.new + 1

    def keep(
        self, metric: str, unit: Unit, samples: list[float], prompt: int, warmup: list[float] | None = None,
        note: str | None = None, work: Work | None = None, **more: Parameter,
    ) -> None:  # fmt: skip
        """Keeps samples; ``more`` are parameters."""
        notes = [*self.notes, *([note] if note else [])]
        parameters = {**self.job.parameters, "prompt": prompt, **more}
        if not self.loaded.real:
            parameters["weights"] = "random"
        about = Quantity(
            experiment="llm",
            workload=self.job.model,
            method=self.job.method,
            target=self._target,
            parameters=parameters,
            metric=metric,
        )
        if not self._sink.has(about):
            self._sink.add(
                Measurement(
                    **about.model_dump(), unit=unit, samples=samples, warmup=warmup or [], work=work or {}, notes=notes
                )
            )

    # ------------------------------------------------------------------------------------------ checks

    def reference(self) -> tuple[list[int], Any]:
        """Greedy tokens after the prompt by PyTorch on the CPU in float32, and the prompt's last logits."""
        import copy

        import torch

        from .engines import TorchEngine, greedy

        plain = self.model if self.job.dtype == "float32" else copy.deepcopy(self.model).float()
        engine = TorchEngine(plain, "cpu", 0)
        ids = torch.tensor([self.loaded.prompt])
        return greedy(engine, ids, min(self.job.new, _CHECKED if self.loaded.real else 4)), engine.logits(ids)

    def check(self, tokens: list[int], expected: list[int]) -> None:
        """Compares tokens with the CPU's. Real float32 weights must give the same ones; else the number is noted.

        Raises:
            UnsuitableError: for other tokens where they must be equal, or none that is.
        """
        from .models import same

        equal, job = same(tokens, expected), self.job
        exact = job.dtype == "float32" and not job.quantize
        if exact and (equal < len(expected) if self.loaded.real else equal == 0):
            raise UnsuitableError(
                f"wrong tokens: {equal} of the first {len(expected)} are the CPU's ({tokens[: equal + 1]} here, "
                f"{expected[: equal + 1]} there); not timed"
            )
        self.notes.append(f"{equal} of {len(expected)} greedy tokens equal to the CPU's in float32")

    # ------------------------------------------------------------------------------------------ the paper's protocol

    def paper(self) -> None:
        """Prompt of five tokens, 50 new ones, greedy; tokens a second over the whole call, as the paper counts them."""
        import torch

        from .engines import greedy
        from .places import wait

        job, prompt = self.job, torch.tensor([self.loaded.prompt])
        expected, logits = self.reference()
        self.expected_logits = logits
        device = self.move()
        if job.method in (GENERATOR, ONNX):
            engine = self._engine()
            generate: Callable[[int], list[int]] = lambda count: greedy(engine, prompt, count)  # noqa: E731
        else:
            generate = self._transformers(prompt)
        start = time.perf_counter()
        tokens = generate(job.new)
        self.keep("first run", "s", [time.perf_counter() - start], prompt.shape[1], note="compiles what is compiled")
        self.check(tokens, expected)

        def seconds(count: int) -> float:
            wait(device)
            start = time.perf_counter()
            generate(count)
            return time.perf_counter() - start

        took: dict[int, list[float]] = {1: [], job.new: []}
        for _ in range(job.warmup + job.runs):
            for count, samples in took.items():
                samples.append(seconds(count))
        size, warm = prompt.shape[1], job.warmup
        rates = [job.new / s for s in took[job.new]]
        first = [s * 1e3 for s in took[1]]
        self.keep(
            RATE,
            "tokens/s",
            rates[warm:],
            size,
            rates[:warm],
            "all new tokens over the time of the whole call",
            self.token_work(),
        )
        self.keep(TTFT, "ms", first[warm:], size, first[:warm])
        self._memory(size, device)

    def _transformers(self, prompt: Any) -> Callable[[int], list[int]]:
        """transformers' own ``generate``."""
        import torch

        job, model = self.job, self.model
        options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "use_cache": job.cache != "none"}
        if job.cache == "static":
            options |= {"cache_implementation": "static", "disable_compile": True}  # compiled below, or not at all
        if job.method != EAGER:
            how: dict[str, Any] = {"backend": "webgpu"} if job.device == "webgpu" else {}
            how |= {"mode": "reduce-overhead"} if job.method == GRAPHS else {}
            model.forward = torch.compile(model.forward, **how)
        ids = prompt.to(model.device)
        mask = torch.ones_like(ids)

        def generate(count: int) -> list[int]:
            limits = {"max_new_tokens": count, "min_new_tokens": count}
            with torch.inference_mode():
                out = model.generate(ids, attention_mask=mask, **limits, **options)
            return out[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

        return generate

    # ------------------------------------------------------------------------------------------ prefill and decode

    def modern(self) -> None:
        """Prefill and decode apart, at each context, with the choice of tokens on the device."""
        import torch

        from .engines import greedy

        job, prompt = self.job, torch.tensor([self.loaded.prompt])
        expected, logits = self.reference()
        self.expected_logits = logits
        device = self.move()
        if device == "webgpu":
            loaded = torch.get_device_module("webgpu").memory_allocated()
            self.keep(LOADED, "bytes", [float(loaded)], prompt.shape[1])
            self.keep(WEIGHTS, "bytes", [self.size()], prompt.shape[1])
        engine = self._engine()
        start = time.perf_counter()
        tokens = greedy(engine, prompt, max(len(expected), 2))[: len(expected)]
        self.keep("first run", "s", [time.perf_counter() - start], prompt.shape[1], note="compiles what is compiled")
        self.check(tokens, expected)
        for context in job.contexts:
            self._at(engine, context, device)

    def _at(self, engine: Any, context: int, device: str) -> None:
        from .places import reset_peak_memory, wait

        budget = Budget(self.job.warmup, self.job.runs, seconds=self.job.seconds, precision=_PRECISION)
        begin, why = time.perf_counter(), None
        job, ids = self.job, self.loaded.context(context)
        reset_peak_memory(device)
        prefill: list[float] = []
        decode: list[float] = []
        while why is None:
            wait(device)
            start = time.perf_counter()
            engine.prefill(ids)
            wait(device)
            middle = time.perf_counter()
            engine.decode(job.new)
            wait(device)
            prefill.append((middle - start) * 1e3)
            decode.append(time.perf_counter() - middle)
            if len(decode) > job.warmup:
                why = budget.enough(decode[job.warmup :], time.perf_counter() - begin)
        warm = job.warmup
        rates, each = [job.new / s for s in decode], [s / job.new * 1e3 for s in decode]
        self.notes += [note for note in getattr(engine, "notes", []) if note not in self.notes]
        self.keep(
            TTFT, "ms", prefill[warm:], context, prefill[:warm],
            "; ".join(filter(None, ("prompt until the first token is on the host", why))), self.prompt_work(context),
        )  # fmt: skip
        self.keep(RATE, "tokens/s", rates[warm:], context, rates[:warm], why, self.token_work())
        self.keep(TOKEN, "ms", each[warm:], context, each[:warm], why, self.token_work())
        if job.method == GENERATOR:
            self._stream(engine.generator, ids)
        if device == "webgpu" and job.method != ONNX:
            self._count(engine, context)
        self._memory(context, device)

    def _stream(self, generator: Any, ids: Any) -> None:
        """Tokens as a user gets them, a few times."""
        job, rates = self.job, []
        for _ in range(min(job.runs, _STREAMS)):
            start = time.perf_counter()
            rates.append(sum(1 for _ in generator.stream(ids, job.new, eos=())) / (time.perf_counter() - start))
        self.keep(STREAMED, "tokens/s", rates, ids.shape[1], work=self.token_work())

    def _count(self, engine: Any, context: int) -> None:
        """What one decode step gives the queue, once everything that can be kept is there."""
        from .. import _C, fallbacks
        from .fusion import counted

        engine.prefill(self.loaded.context(context))
        made = _C.stats()["bind_group_misses"]
        dispatches, submits = counted(lambda: engine.decode(1))
        made = _C.stats()["bind_group_misses"] - made
        counts = {DISPATCHES: dispatches, SUBMITS: submits, BIND_GROUPS: made}
        for metric, count in counts.items():
            self.keep(metric, "count", [float(count)], context, note="of one decode step, its token read back")
        if absent := fallbacks():
            self.notes.append(f"run on the CPU: {', '.join(sorted(absent))}")

    # ------------------------------------------------------------------------------------------ shared

    def size(self) -> float:
        """Bytes of the model as it is now."""
        return float(sum(t.numel() * t.element_size() for t in {*self.model.parameters(), *self.model.buffers()}))

    def token_work(self) -> Work:
        """Of one further token: every weight once, but for a table of which one row is read."""
        return {"flops": 2 * self.work["body"] + 2 * self.work["head"], "bytes": self.size() * self.work["read"]}

    def prompt_work(self, tokens: int) -> Work:
        """Of a prompt of so many tokens, with the head for its last one alone."""
        return {"flops": 2 * self.work["body"] * tokens + 2 * self.work["head"]}

    def move(self) -> str:
        """Puts the model on its device, quantised if it is to be; returns the device whose work is waited for."""
        import torch

        job = self.job
        if job.method == ONNX:
            return "cpu"
        if job.quantize:
            from ..llm import quantize

            kind: Any = job.quantize
            self.model = quantize(self.model, kind)
        self.model = self.model.to(job.device)
        if job.device == "webgpu":
            from ..runtime import device

            torch.get_device_module("webgpu").synchronize()
            self.on_cpu = device().adapter.kind == "cpu"
        return job.device

    def _engine(self) -> Any:
        import torch

        from .engines import GeneratorEngine, TorchEngine
        from .onnx_engine import OnnxEngine

        job = self.job
        if job.method == GENERATOR:
            return GeneratorEngine(self.model, self.length)
        if job.method == ONNX:
            engine = OnnxEngine(self.model, job.device)
            found = engine.logits(torch.tensor([self.loaded.prompt])).float()
            largest, off = float(self.expected_logits.abs().max()), float((found - self.expected_logits).abs().max())
            if not off <= 1e-3 * largest:
                raise UnsuitableError(f"wrong logits: off by {off:.3g} where they reach {largest:.3g}; not timed")
            self.notes.append(f"logits differ from PyTorch's by {off / largest:.1e} of the largest")
            return engine
        how: dict[str, dict[str, Any] | None] = {
            EAGER: None,
            INDUCTOR: {},
            GRAPHS: {"mode": "reduce-overhead"},
            UNFUSED: {"options": {"max_fusion_size": 1, "epilogue_fusion": False, "triton.cudagraphs": True}},
            COMPILED: {"backend": "webgpu"},
        }
        return TorchEngine(self.model, job.device, self.length, how[job.method])

    def _memory(self, prompt: int, device: str) -> None:
        from .places import peak_memory

        peak = peak_memory(device)
        if peak is not None:
            self.keep(MEMORY, "bytes", [float(peak)], prompt, note="most bytes in the device's tensors at once")
        else:
            kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            scale = 1 if sys.platform == "darwin" else 1024
            self.keep(
                MEMORY, "bytes", [float(kib * scale)], prompt, note="the process's largest resident set, loading included"
            )


def _work(model: Any) -> dict[str, float]:
    """Weights in products of each token (``body``), of the head, and which part of all weights a token reads (``read``)."""
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    body = sum(p.numel() for p in parameters if p.dim() >= 2 and p is not table and p is not head)
    unread = 0 if table is head else table.numel()
    return {"body": float(body), "head": float(head.numel()), "read": 1 - unread / count}


def target_of_job(job: Job) -> Target:
    """The target that a job is measured on."""
    from .targets import torch_target

    if job.method == ONNX:
        from .onnx_engine import PROVIDERS, UnavailableError, check_provider

        try:
            check_provider(job.device)
        except UnavailableError as e:
            raise UnsuitableError(str(e)) from None
        import onnxruntime

        from .environment import cpu_name

        on_cpu = job.device == "cpu"
        adapter = cpu_name() if on_cpu else "the adapter that ONNX Runtime takes"
        return Target(
            kind="cpu" if on_cpu else "webgpu",
            implementation="onnxruntime",
            version=onnxruntime.__version__,
            adapter=adapter,
            adapter_kind="cpu" if on_cpu else "unknown",
            backend=PROVIDERS[job.device],
        )
    return torch_target(job.device)


def measure(request: dict[str, Any], sink: Sink) -> None:
    """Measures a job, or keeps a note why not; for ``worker``."""
    from ..errors import WebGPUError
    from ..llm import ModelError
    from ..llm.generator import positions
    from .models import load_model
    from .onnx_engine import UnavailableError

    content = {k: v for k, v in request.items() if k != "title"}
    job = Job(**{**content, "contexts": tuple(content["contexts"])})
    try:
        target = sink.target(target_of_job(job))
        loaded = load_model(job.model, job.path, job.dtype, job.layers)
        longest, most = max((*job.contexts, len(loaded.prompt))), positions(loaded.model)
        if most is not None and longest + job.new + 1 > most:
            raise UnsuitableError(f"a context of {longest} and {job.new} new tokens: the model has {most} positions")
        measured = Measured(job, loaded, sink, target)
        if job.protocol in ("compile", "kernels"):
            from . import llm_plans

            (llm_plans.ready if job.protocol == "compile" else llm_plans.kernels)(measured)
        else:
            measured.paper() if job.protocol == "paper" else measured.modern()
    except (UnsuitableError, UnavailableError, ModelError, WebGPUError) as e:
        sink.note(f"{job.title}: {e}")
