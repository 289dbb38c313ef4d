"""``torch-webgpu explain``: the plan of a language model's decode step."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import console
from .console import err, load_torch, quiet, reported

if TYPE_CHECKING:
    from ..compiler import Explanation


class Fusion(str, Enum):
    """Levels of ``TORCH_WEBGPU_FUSION``."""

    none = "none"
    pointwise = "pointwise"
    full = "full"


class Weights(str, Enum):
    """Dtypes of weights, and quantised kinds."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"
    int4 = "int4"
    gguf = "gguf"


LENGTH = 128  # of the cache that the step reads


def explain(
    model: Annotated[
        str | None, typer.Argument(help="Hub name, folder or GGUF file.", show_default="SmolLM2-135M-Instruct")
    ] = None,
    fusion: Annotated[Fusion, typer.Option(help="How far to fuse.")] = Fusion.full,
    weights: Annotated[Weights, typer.Option(help="Dtype of the weights, or how they are quantised.")] = Weights.float32,
    unfolded: Annotated[bool, typer.Option("--all", help="Every launch, not one row for those of equal layers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document and nothing else.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write plan.json, plan.dot, plan.svg and the shaders there.")
    ] = None,
) -> None:
    """Shows what a language model's decode step becomes: every launch, its buffers, and the totals."""
    with reported():
        found = _explain(model, fusion.value, weights.value)
    found.fold = not unfolded
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    elif console.out.is_terminal:
        console.out.print(found)
    else:
        typer.echo(str(found))
    if out is not None:
        _write(found, out)


def _explain(name: str | None, fusion: str, weights: str) -> Explanation:
    quiet()
    with err.status("Loading PyTorch…") as status:
        load_torch()
        import torch

        from ..compiler import explain
        from ..llm import Generator, load

        status.update("Loading the model…")
        quantised: Any = weights if weights in ("int8", "int4", "gguf") else None
        dtype = torch.float32 if quantised else getattr(torch, weights)
        model, _ = load(name, dtype, "webgpu", quantised)
        limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or LENGTH
        generator = Generator(model, min(LENGTH, limit))
        status.update("Compiling…")
        with torch.no_grad():
            return explain(generator._decode, fusion=fusion)


def _write(found: Explanation, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(found.to_dict(), indent=1) + "\n")
    shaders = found.write_wgsl(folder / "wgsl")
    drawn = "plan.svg"
    try:
        found.write_graph(folder / "plan.svg")
    except RuntimeError as e:
        drawn = "plan.dot"
        err.print(f"[yellow]{e}[/]", soft_wrap=True)
    err.print(f"[dim]{folder}: plan.json, {drawn}, wgsl/ ({len(shaders)} shaders)[/]", soft_wrap=True)
