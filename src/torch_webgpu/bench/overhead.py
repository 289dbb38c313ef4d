"""``torch-webgpu bench overhead``: where the time of one tensor op, and of one decode step, goes.

The same op is measured from the inside out; each layer's share is the difference of two neighbours:

- ``API and driver``: C++ loops on a kernel with the op's bindings, all dispatches in one pass. On ``dawn-null`` it is the API
  alone. ``host`` is the calls, ``wall`` has queue and GPU in it, ``gpu`` is the GPU's own timestamps.
- ``C++ dispatcher``: the op called n times from C++ through PyTorch's dispatcher, so the core's own work is added.
- ``Python``: the op called from Python.
- ``stages of the core``: the C++ core's part by its own counters, which cost about 25 ns each.

Recording and encoding run in two threads: ``host`` of the last three has no encoding in it, ``wall`` has all. CUDA's launches
(``Python``, ``C++ dispatcher``, ``CUDA graph``) and the processor's are measured the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .cells import Cell, measure
from .targets import torch_target, webgpu_target

if TYPE_CHECKING:
    import torch

    from .session import Session, Sink

COUNTS, QUICK_COUNTS = (1, 5, 15, 40), (1, 10, 40)  # fewer than a submit takes
STEP_COUNTS, QUICK_STEP_COUNTS = (1, 2, 4, 8), (1, 2, 4)
_GRAPH_COUNTS = (1, 10, 100)
STAGES = ("key", "output", "record", "stack")


@dataclass(frozen=True)
class Op:
    """A tensor op.

    Attributes:
        bindings: of its kernel's storage buffers.
        arguments: of the schema, where ``x`` and ``y`` stand for tensors [16, 16].
    """

    name: str
    schema: str
    overload: str
    arguments: tuple[str | float, ...]
    bindings: int
    python: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


OPS = (
    Op("x + 1.0", "aten::add", "Scalar", ("x", 1.0, 1), 2, lambda x, y: x + 1.0),
    Op("x + y", "aten::add", "Tensor", ("x", "y", 1), 3, lambda x, y: x + y),
    Op("x @ y", "aten::mm", "", ("x", "y"), 3, lambda x, y: x @ y),
)


def overhead(session: Session, implementations: Sequence[str] = (), model_size: str = "tiny") -> None:
    """Measures everything that is installed here, the processor and CUDA too.

    Args:
        implementations: as in ``dispatch``; given, neither the processor nor CUDA is measured.
        model_size: of the decode step; see ``decode_model``.
    """
    from .dispatch import environment, places

    for name, index, title in places(session, implementations):
        request = {"implementation": name, "adapter": index, "title": title, "model_size": model_size}
        session.work("overhead:measure_place", request, environment(name, index))
    for device in () if implementations else ("cpu", "cuda"):
        session.work("overhead:measure_torch", {"device": device, "title": f"torch on {device}"}, {})


def measure_place(request: Mapping[str, Any], sink: Sink) -> None:
    """One adapter of one implementation; runs in a process of its own."""
    from .dispatch import open_tensors
    from .loop import Device, adapter_of

    device = Device(adapter_of(request["implementation"], request["adapter"]))
    open_tensors(device)
    target, title = sink.target(webgpu_target(device.adapter)), request["title"]
    cells = [cell for op in OPS for cell in (*_loop_cells(device, op, sink.quick), *_op_cells("webgpu", op, sink.quick))]
    cells += [_stages(op) for op in OPS]
    measure(sink, "overhead", target, cells, f"{title}: ops")
    measure(sink, "overhead", target, _decode_cells(device, request["model_size"], sink), f"{title}: decode step")


def measure_torch(request: Mapping[str, Any], sink: Sink) -> None:
    """PyTorch's own devices; a missing CUDA device is nothing to tell."""
    import torch

    device = request["device"]
    if device == "cuda" and not torch.cuda.is_available():
        return
    cells = [cell for op in OPS for cell in _op_cells(device, op, sink.quick)]
    if device == "cuda":
        cells += [cell for op in OPS for cell in _graph_cells(op)]
    measure(sink, "overhead", sink.target(torch_target(device)), cells, f"{request['title']}: ops")


def _loop_cells(device: Any, op: Op, quick: bool) -> list[Cell]:
    from .loop import Kernel, Loop

    loop = Loop(device, Kernel(bindings=op.bindings, uniform=True))

    def cell(n: int, gpu: bool) -> Cell:
        def run() -> dict[str, float]:
            sample = loop.run("one pass", n, timestamps=gpu)
            return {"wall": sample.wall, "host": sample.host} if sample.gpu is None else {"gpu": sample.gpu}

        return Cell(op.name, "API and driver", {"n": n}, ("gpu",) if gpu else ("wall", "host"), run)

    timed = (False, True) if device.timestamps else (False,)
    return [cell(n, gpu) for n in (QUICK_COUNTS if quick else COUNTS) for gpu in timed]


def _tensors(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    return torch.full((16, 16), 2.0, device=device), torch.full((16, 16), 3.0, device=device)


def _op_cells(device: str, op: Op, quick: bool) -> list[Cell]:
    import torch

    from .. import _C
    from .torch_cells import synchronize, timed

    x, y = _tensors(device)
    arguments = [{"x": x, "y": y}.get(a, a) if isinstance(a, str) else a for a in op.arguments]

    def from_python(n: int) -> None:
        with torch.inference_mode():
            for _ in range(n):
                op.python(x, y)

    def from_cpp(n: int) -> dict[str, float]:
        synchronize(device)
        start = time.perf_counter_ns()
        host = _C.run_op(op.schema, op.overload, arguments, n)
        synchronize(device)
        return {"wall": (time.perf_counter_ns() - start) / 1e3, "host": host / 1e3}

    def cells(n: int) -> list[Cell]:
        return [
            Cell(op.name, "Python", {"n": n}, ("wall", "host"), lambda: timed(device, lambda: from_python(n))),
            Cell(op.name, "C++ dispatcher", {"n": n}, ("wall", "host"), lambda: from_cpp(n)),
        ]

    return [cell for n in (QUICK_COUNTS if quick else COUNTS) for cell in cells(n)]


def _stages(op: Op) -> Cell:
    import torch

    from .. import _C
    from .torch_cells import synchronize

    x, y = _tensors("webgpu")

    def run() -> dict[str, float]:
        synchronize("webgpu")
        _C.profile(True)
        _C.reset_stats()
        with torch.inference_mode():
            for _ in range(COUNTS[-1]):
                op.python(x, y)
        stats = _C.stats()
        _C.profile(False)
        return {stage: stats[f"{stage}_ns"] / stats["launches"] / 1e3 for stage in STAGES}

    with torch.inference_mode():
        op.python(x, y)
    return Cell(op.name, "stages of the core", {}, STAGES, run)


def _graph_cells(op: Op) -> list[Cell]:
    import torch

    from .torch_cells import timed

    x, y = _tensors("cuda")

    def cell(n: int) -> Cell:
        with torch.inference_mode():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):  # warm, as capturing wants it
                op.python(x, y)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(n):
                    op.python(x, y)
        return Cell(op.name, "CUDA graph", {"n": n}, ("wall", "host"), lambda: timed("cuda", graph.replay))

    return [cell(n) for n in _GRAPH_COUNTS]


#: Shapes of decoders: SmolLM2-135M's layer with two of its thirty, and Qwen2.5-0.5B.
MODELS: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 576,
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 4096,
    },
    "0.5B": {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
    },
}


def decode_model(size: str) -> Any:
    """A decoder of one of ``MODELS``'s shapes with random weights, float32, on the processor."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**MODELS[size], max_position_embeddings=512, tie_word_embeddings=True)
    return LlamaForCausalLM(config).eval()


def _decode_cells(device: Any, size: str, sink: Sink) -> list[Cell]:
    """A compiled decode step: n steps without a wait between them; and the balance of host and GPU."""
    import torch

    from .. import _C
    from ..llm import Generator
    from .torch_cells import synchronize, timed

    counts = QUICK_STEP_COUNTS if sink.quick else STEP_COUNTS
    prompt = torch.arange(1, 9)
    generator = Generator(decode_model(size).to("webgpu"), len(prompt) + 2 * counts[-1] + 2, compile_prompts=False)
    workload = f"decode step, {size}"
    # On the null driver nothing is computed, so a token may be any number: only what the calls cost is seen.
    generator.compile(prompt)

    def ready() -> None:
        generator.prefill(prompt)
        synchronize("webgpu")

    def steps(n: int) -> dict[str, float]:
        ready()
        return timed("webgpu", lambda: generator.advance(n))

    def gpu_us(n: int) -> float:
        ready()
        _C.time_passes(True)
        generator.advance(n)
        ns, passes, dropped, untimed = _C.time_passes(False)
        if dropped or untimed or not passes:
            sink.note(f"{workload}: of {passes + untimed} passes {dropped + untimed} have no usable timestamps")
        return float(ns) / 1e3

    def balance() -> dict[str, float]:
        n = counts[-1]
        return {"host over gpu": steps(n)["host"] / max(gpu_us(n), 1e-3)}

    def cell(n: int) -> Cell:
        return Cell(workload, "compiled plan", {"n": n}, ("wall", "host"), lambda: steps(n))

    def gpu_cell(n: int) -> Cell:
        return Cell(workload, "compiled plan", {"n": n}, ("gpu",), lambda: {"gpu": gpu_us(n)})

    cells = [cell(n) for n in counts]
    if device.timestamps:
        cells += [gpu_cell(n) for n in counts]
        cells.append(Cell(workload, "compiled plan", {}, ("host over gpu",), balance, unit="ratio"))
    return cells
