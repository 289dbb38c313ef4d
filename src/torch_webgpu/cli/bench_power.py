"""``torch-webgpu bench power``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .bench_run import RESULTS, AsJson, Out, Quick, extra, measure, options
from .console import load_torch, out, quiet

if TYPE_CHECKING:
    from ..bench.power import Decode
    from ..bench.schema import Run
    from ..bench.session import Session


def power(
    model: Annotated[str | None, typer.Option(help="Name, folder or GGUF file.", show_default="SmolLM2-135M")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of one decode.")] = 64,
    runs: Annotated[int, typer.Option(min=2, help="Samples, and as many idle windows.")] = 30,
    seconds: Annotated[float, typer.Option(min=0, help="Of work in each sample, at least.")] = 2.0,
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """Joules a token of a decode, above idle, where NVML or RAPL answers; elsewhere it says why not."""
    quiet()  # before anything imports PyTorch, and with it tqdm
    with extra():
        from ..bench.power import Protocol

    how = Protocol(idle=0.2, seconds=0.2, runs=3, warmup=1) if quick else Protocol(seconds=seconds, runs=runs)
    given = options(model=model, tokens=tokens, runs=runs, seconds=seconds)

    def run(session: Session) -> None:
        _power(session, model, min(tokens, 8) if quick else tokens, how)

    measure("power", run, quick, as_json, folder, given, _print)


def _power(session: Session, name: str | None, tokens: int, how: Any) -> None:
    load_torch()
    from ..bench.meters import meters
    from ..bench.power import measure as measure_power
    from ..bench.targets import torch_target

    session.progress("Loading…")
    target = torch_target("webgpu")
    found, why = meters(target.adapter, target.adapter_kind == "cpu")
    for reason in why:
        session.note(f"no energy: {reason}")
    decode = _decode(name, tokens)
    session.progress("Measuring…")
    measure_power(session, session.target(target), decode, found, why, how)


def _decode(name: str | None, tokens: int) -> Decode:
    """A compiled decode of the model, replayed from the same prompt."""
    import torch

    from ..bench.models import PROMPT, SMOLLM2
    from ..bench.power import Decode
    from ..llm import Generator, load

    model, tokenizer = load(name)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    generator = Generator(model, ids.numel() + tokens)
    generator.compile(ids)
    device = torch.get_device_module("webgpu")

    def run() -> None:
        generator.prefill(ids)
        generator.advance(tokens - 1)
        device.synchronize()

    notes = ("A decode is the prompt of its few tokens and the tokens after it; all of it counts.",)
    settings = {"dtype": str(generator.dtype).removeprefix("torch."), "prompt": ids.numel()}
    workload = Path(name).stem if name else SMOLLM2
    return Decode(workload, "compiled", tokens, run, device.synchronize, settings, notes)


def _print(run: Run) -> None:
    from ..bench.names import ENERGY
    from ..bench.report.document import Estimate

    for target in run.targets:
        out.print(f"[dim]{escape(target.label)}[/]", soft_wrap=True)
    for m in run.measurements:
        e = Estimate.of(m.samples, m.unit)
        per = " a token" if m.unit == "J" else ""
        out.print(
            f"{m.metric}: [bold]{e.text}{per}[/] ({e.detail})"
            + (f", {m.parameters['meter']}" if "meter" in m.parameters else "")
        )
    if not any(m.metric == ENERGY for m in run.measurements):
        out.print("[yellow]No energy was measured[/]; the file says why.")
