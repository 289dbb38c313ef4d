"""The decode step of ``bench overhead``: the package's plan of one, and on CUDA Inductor's with and without a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .cells import Cell
from .names import CUDA_GRAPH, DECODE_STEP, FROM_CPP, FROM_PYTHON, HOST, OVERLAPPED, SUBMITTED, WALL
from .overhead import MOST_IN_A_SUBMIT, calls_alone, closest, gpu_cell, staged

if TYPE_CHECKING:
    from .loop import Device, Loop
    from .session import Sink

_COUNTS, _QUICK_COUNTS = (1, 2, 4, 8), (1, 2, 4)
_LONG_COUNTS, _QUICK_LONG_COUNTS = (8, 16, 32), (8, 12, 16)
_QUICK_LAYERS = 1
_MOST_PIPELINES = 32  # of the loop


def workload_of(model: str, layers: int | None) -> str:
    """The workload's name; ``layers`` are the model's first so many alone, as quick runs have it."""
    return f"{DECODE_STEP}, {model}" + (f", {layers} layer" if layers else "")


class Steps:
    """A model's decode step on the webgpu device, begun anew for each sample so that all see the same positions."""

    def __init__(self, name: str, most: int, layers: int | None = None) -> None:
        """Compiles.

        Args:
            most: steps of a sample.
            layers: of the model, all unless given.

        Raises:
            WebGPUError: where the step is no plan, or replaying it has another number of dispatches.
        """
        import torch

        from .. import _C
        from ..errors import WebGPUError
        from ..llm import Generator
        from .models import load_model
        from .places import wait

        loaded = load_model(name, None, "float32", layers)
        self.prompt = torch.tensor(loaded.prompt)
        self.generator = Generator(loaded.model.to("webgpu"), len(loaded.prompt) + most + 2, compile_prompts=False)
        self.generator.compile(self.prompt)
        self.advance(1)
        plans = self.generator._step[0].plans if self.generator._step else []
        if len(plans) != 1:
            raise WebGPUError(f"the decode step of {name} is {len(plans)} plans instead of one")
        self.dispatches = plans[0].dispatches
        before = _C.stats()["dispatches"]
        self.advance(2)
        wait("webgpu")
        if (made := _C.stats()["dispatches"] - before) != 2 * len(self.dispatches):
            raise WebGPUError(f"two decode steps of {len(self.dispatches)} dispatches made {made}")

    def ready(self) -> None:
        """Back to the prompt's end; waits."""
        from .places import wait

        self.generator.prefill(self.prompt)
        wait("webgpu")

    def advance(self, n: int) -> None:
        """n replays of the plan by one call."""
        self.generator.advance(n)

    def one_by_one(self, n: int) -> None:
        """n replays, each by its own call from Python."""
        for _ in range(n):
            self.generator.advance(1)


def step_cells(device: Device, model: str, sink: Sink) -> tuple[Loop, list[Cell]]:
    """The cells of a decode step, and the loop that some of them run.

    What may not overlap is one submit; the loop makes as many dispatches as the step has, with as many pipelines in turn (at
    most 32) and its mean number of storage buffers.
    """
    from .torch_cells import timed

    most = (_QUICK_LONG_COUNTS if sink.quick else _LONG_COUNTS)[-1]
    layers = _QUICK_LAYERS if sink.quick else None
    workload = workload_of(model, layers)
    sink.progress(f"Compiling {workload}…")
    steps = Steps(model, most, layers)
    each = len(steps.dispatches)
    wanted = _QUICK_COUNTS if sink.quick else _COUNTS
    counts = [n for n in wanted if n * each <= MOST_IN_A_SUBMIT]
    if len(counts) < 3:
        counts = list(wanted[:3])
        made = counts[-1] * each
        sink.note(f"{workload}: {counts[-1]} steps are {made} dispatches, more than a submit takes, so layers overlap")

    def sample(run: Callable[[int], object], n: int) -> dict[str, float]:
        steps.ready()
        return staged(lambda: run(n))

    def overlapped(n: int) -> dict[str, float]:
        steps.ready()
        return timed("webgpu", lambda: steps.one_by_one(n))

    room = device.handle.limits["maxStorageBuffersPerShaderStage"]
    bindings = min(closest([len(d.bindings) for d in steps.dispatches]), room)
    pipelines = min(len({d.pipeline for d in steps.dispatches}), _MOST_PIPELINES)
    loop, cells = calls_alone(device, workload, bindings, counts, each, pipelines)
    note = f"{each} dispatches with {pipelines} pipelines in turn and {bindings} storage buffers each, as the step has them"
    cells = [Cell(c.workload, c.method, c.parameters, c.metrics, c.run, notes=lambda: [note]) for c in cells]
    metrics = (HOST, SUBMITTED, WALL)
    for n in counts:
        cells.append(Cell(workload, FROM_CPP, {"n": n}, metrics, partial(sample, steps.advance, n)))
        cells.append(Cell(workload, FROM_PYTHON, {"n": n}, metrics, partial(sample, steps.one_by_one, n)))
        if device.timestamps:
            cells.append(gpu_cell(workload, n, partial(steps.advance, n), steps.ready))
    for n in _QUICK_LONG_COUNTS if sink.quick else _LONG_COUNTS:
        cells.append(Cell(workload, OVERLAPPED, {"n": n}, (WALL, HOST), partial(overlapped, n)))
    return loop, cells


def cuda_step_cells(model: str, quick: bool) -> list[Cell]:
    """Inductor's kernels of the same step, launched one by one from Python, and by a CUDA graph."""
    import torch

    from .engines import TorchEngine
    from .models import load_model

    counts = _QUICK_COUNTS if quick else _COUNTS
    layers = _QUICK_LAYERS if quick else None
    workload, loaded = workload_of(model, layers), load_model(model, None, "float32", layers)
    network: Any = loaded.model.to("cuda")
    prompt = torch.tensor([loaded.prompt])
    length = len(loaded.prompt) + counts[-1] + 2
    cells = []
    for method, how in ((FROM_PYTHON, {}), (CUDA_GRAPH, {"mode": "reduce-overhead"})):
        engine = TorchEngine(network, "cuda", length, {"backend": "inductor", **how})
        for _ in range(3):  # compiles, captures, and replays once
            engine.prefill(prompt)
            engine.decode(counts[-1])
        for n in counts:
            cells.append(Cell(workload, method, {"n": n}, (WALL, HOST), partial(_cuda_steps, engine, prompt, n)))
    return cells


def _cuda_steps(engine: Any, prompt: Any, n: int) -> dict[str, float]:
    from .torch_cells import timed

    engine.prefill(prompt)
    return timed("cuda", lambda: engine.advance(n))
