"""The command line: ``torch-webgpu``; a module a command."""

from __future__ import annotations

import typer

from . import bench, explain, export, generate, info, serve, tune

app = typer.Typer(
    help='A PyTorch device for WebGPU: device="webgpu".',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(info.info)
app.command()(generate.generate)
app.command()(tune.tune)
app.command()(explain.explain)
app.command()(export.export)
app.command()(serve.serve)
app.add_typer(bench.app, name="bench")
