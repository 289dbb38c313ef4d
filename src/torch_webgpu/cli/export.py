"""``torch-webgpu export``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .bench_run import extra
from .console import err, fail, load_torch, out, quiet, reported

if TYPE_CHECKING:
    from ..web.bundle import Bundle
    from ..web.write import Progress as Tell


class Weights(str, Enum):
    """Dtypes of weights, and quantised kinds."""

    f32 = "f32"
    f16 = "f16"
    int8 = "int8"
    int4 = "int4"


def export(
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="smollm2, efficientnet, or a language model: hub name, folder or GGUF file."),
    ],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="The bundle's folder.")],
    dtype: Annotated[Weights, typer.Option(help="Dtype of the weights, or how they are quantised.")] = Weights.f32,
    context: Annotated[
        int | None, typer.Option(min=2, help="Tokens that prompt and text may have.", show_default="1024, or all there are")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the bundle.", show_default="the model's")] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="What the target grants beyond WebGPU's default limits.")
    ] = None,
    shard: Annotated[int, typer.Option(min=1, max=128, help="MiB of a file of weights at most.")] = 128,
    rasteriser: Annotated[bool, typer.Option("--rasteriser", help="Kernels for WebGPU on a CPU (SwiftShader).")] = False,
) -> None:
    """Exports a model for browsers: plans, shaders and weights, with a page that shows it (`torch-webgpu serve DIR`)."""
    limits = dict(map(_limit, limit or []))
    if model == "efficientnet" and context is not None:
        raise fail("--context is for language models.")
    if model == "efficientnet" and dtype.value.startswith("int"):
        raise fail(f"--dtype {dtype.value} is for language models; efficientnet can be f32 or f16.")
    quiet()
    common: dict[str, Any] = {
        "dtype": dtype.value, "limits": limits, "shard_bytes": shard << 20, "rasteriser": rasteriser
    }  # fmt: skip
    with extra(), reported(), _progress() as tell:
        load_torch()
        from ..errors import ExportError
        from ..web import export_classifier, export_llm

        if name is not None:
            common["name"] = name
        try:
            if model == "efficientnet":
                made = export_classifier(folder, progress=tell, **common)
            else:
                named = None if model == "smollm2" else model
                made = export_llm(named, folder, context=context, progress=tell, **common)
        except (ExportError, ValueError) as e:
            raise fail(str(e)) from None
    _report(made, folder)


def _limit(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not value.isdecimal():
        raise fail(f"--limit {text}: it is written NAME=VALUE, as maxBufferSize=1073741824.")
    return name, int(value)


@contextmanager
def _progress() -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def tell(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share)

        yield tell


def _report(made: Bundle, folder: Path) -> None:
    size = sum(file.size for file in made.files.values())
    out.print(f"[bold]{escape(made.name)}[/] in {escape(str(folder))}: {len(made.files)} files, {size / 2**20:.0f} MiB")
    for variant in made.variants:
        needs = [*variant.features, *(f"{k} ≥ {v}" for k, v in variant.limits.items())]
        out.print(
            f"  {variant.name}: {variant.memory / 2**20:.0f} MiB of memory"
            + (f", needs {', '.join(needs)}" if needs else ", runs on every WebGPU device"),
            soft_wrap=True,
        )
    if made.language is not None:
        out.print(
            f"  {made.language.length} tokens of context, prompts in pieces of {made.language.prompts}", soft_wrap=True
        )
    out.print(f"[dim]torch-webgpu serve {escape(str(folder))} --open shows it[/]", soft_wrap=True)
