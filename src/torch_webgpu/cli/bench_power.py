"""``torch-webgpu bench power``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .console import device_name, err, fail, out, quiet, reported


def power(
    target: Annotated[Path, typer.Option("--out", help="Result file.")] = Path("power.json"),
    model: Annotated[str | None, typer.Option(help="Name, folder or GGUF file.", show_default="SmolLM2-135M")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of one decode.")] = 64,
    runs: Annotated[int, typer.Option(min=2, help="Samples, and as many idle windows.")] = 30,
    seconds: Annotated[float, typer.Option(min=0, help="Of work in each sample, at least.")] = 2.0,
    quick: Annotated[bool, typer.Option(help="Few short samples, to see whether it works.")] = False,
) -> None:
    """Joules a token of a decode, above idle, where NVML or RAPL answers; elsewhere it says why not."""
    quiet()  # before anything imports PyTorch, and with it tqdm
    from ..bench.power import Protocol

    how = Protocol(idle=0.2, seconds=0.2, runs=3, warmup=1) if quick else Protocol(seconds=seconds, runs=runs)
    with reported():
        _power(target, model, min(tokens, 8) if quick else tokens, how)


def _power(path: Path, name: str | None, tokens: int, how: Any) -> None:
    from ..bench.meters import meters
    from ..bench.power import measure
    from ..bench.recorder import Recorder

    try:
        recorder = Recorder(path)
    except (FileExistsError, ValueError) as e:
        raise fail(str(e)) from None
    with err.status("Loading…") as status:
        from .. import _autoload

        _autoload()
        from ..bench.targets import present_target

        target = present_target()
        found, why = meters(target.adapter, target.adapter_kind == "cpu")
        for reason in why:
            err.print(f"[yellow]no energy:[/] {escape(reason)}", soft_wrap=True)
        decode = _decode(name, tokens)
        status.update("Measuring…")
        measure(recorder, recorder.target(target), decode, found, why, how)
        run = recorder.finish()
    _print(run, [m.covers for m in found])


def _decode(name: str | None, tokens: int) -> Any:
    """A compiled decode of the model, replayed from the same prompt."""
    import torch

    from ..bench.power import Decode
    from ..llm import Generator, load

    model, tokenizer = load(name)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    generator = Generator(model, ids.numel() + tokens)
    generator.compile(ids)
    device = torch.get_device_module("webgpu")

    def run() -> None:
        generator.prefill(ids)
        generator.advance(tokens - 1)
        device.synchronize()

    notes = ("A decode is the prompt of its few tokens and the tokens after it; all of it counts.",)
    settings = {"dtype": str(generator.dtype).removeprefix("torch."), "prompt": ids.numel()}
    workload = Path(name).stem if name else "SmolLM2-135M"
    return Decode(workload, "compiled", tokens, run, device.synchronize, settings, notes)


def _print(run: Any, covers: list[str]) -> None:
    from ..bench.report.document import Estimate

    out.print(f"[dim]{escape(device_name('webgpu'))}[/]", soft_wrap=True)
    for m in run.measurements:
        e = Estimate.of(m.samples, m.unit)
        per = " a token" if m.unit == "J" else ""
        out.print(
            f"{m.metric}: [bold]{e.text}{per}[/] ({e.detail})"
            + (f", {m.parameters['meter']}" if "meter" in m.parameters else "")
        )
    if not covers:
        out.print("[yellow]No energy was measured[/]; the file says why.")
