"""``torch-webgpu bench``: the instrument's commands."""

from __future__ import annotations

import typer

from . import bench_all, bench_browser, bench_dispatch, bench_models, bench_overhead, bench_power, bench_report

app = typer.Typer(help="The instrument: measures what WebGPU costs, keeps raw samples, and reports.", no_args_is_help=True)
app.command("all")(bench_all.all_)
app.command()(bench_report.report)
app.command()(bench_report.validate)
app.command("import")(bench_report.import_)
app.command()(bench_power.power)
app.command()(bench_dispatch.dispatch)
app.command()(bench_overhead.overhead)
app.command()(bench_browser.browser)
app.command()(bench_models.fusion)
app.command()(bench_models.llm)
app.command()(bench_models.vision)
