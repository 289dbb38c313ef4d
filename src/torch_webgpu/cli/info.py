"""``torch-webgpu info``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from .console import err, fail, out

#: The limits that decide what fits, and whether they are bytes.
_SHOWN_LIMITS = {
    "maxBufferSize": ("buffer", True),
    "maxStorageBufferBindingSize": ("binding", True),
    "maxComputeWorkgroupStorageSize": ("workgroup memory", True),
    "maxComputeInvocationsPerWorkgroup": ("invocations", False),
    "maxStorageBuffersPerShaderStage": ("storage buffers", False),
}


def _bytes(count: int) -> str:
    value, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while value >= 1023.995 and len(units) > 1:  # 4 GiB less one byte is 4 GiB to a reader
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def _limits(limits: dict[str, int]) -> str:
    known = ((text, is_bytes, limits.get(key)) for key, (text, is_bytes) in _SHOWN_LIMITS.items())
    return ", ".join(f"{text} {_bytes(n) if is_bytes else n}" for text, is_bytes, n in known if n is not None)


def info(as_json: Annotated[bool, typer.Option("--json", help="One JSON document and nothing else.")] = False) -> None:
    """Shows versions, implementations and adapters, which one is taken, and what is missing."""
    from ..diagnostics import collect

    try:
        if as_json:
            facts = collect()
        else:
            with err.status("Asking for adapters…"):
                facts = collect()
    except ValueError as e:
        raise fail(str(e)) from None
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print_info(facts)


def _print_info(facts: dict[str, Any]) -> None:
    versions = [f"{name} {version or '(not installed)'}" for name, version in facts["versions"].items()]
    out.print(f"{escape(', '.join(versions))}\n{escape(facts['platform'])}", soft_wrap=True)
    for name, value in facts["environment"].items():
        out.print(f"{escape(name)}={escape(value)}", soft_wrap=True)
    chosen = facts["chosen"]
    taken = (chosen["implementation"], chosen["adapter"]) if chosen else None
    for name, found in facts["implementations"].items():
        state = {True: f"{found['version']}", False: "[yellow]not installed[/]", None: "[red]failed[/]"}
        out.print(f"\n[bold]{name}[/] {state[found['installed']]}")
        for adapter in found["adapters"]:
            out.print(_adapter_lines(adapter, taken == (name, adapter["index"])))
        for text in filter(None, (found["advice"], found["error"])):
            out.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    out.print()
    if chosen:
        device = f"{chosen['implementation']} {chosen['adapter']}: {chosen['name']}"
        out.print(f"[bold green]Chosen:[/] {escape(device)}\n[dim]{escape(chosen['reason'])}[/]", soft_wrap=True)
    else:
        out.print("[bold red]No device:[/] webgpu tensors cannot be made here; see above for what to do.", soft_wrap=True)


def _adapter_lines(adapter: dict[str, Any], taken: bool) -> Table:
    lines = Table.grid(padding=(0, 1))
    mark = f"[green]➜ {adapter['index']}[/]" if taken else f"  {adapter['index']}"
    lines.add_row(mark, "adapter", f"[bold]{escape(adapter['name'])}[/] ({adapter['kind']})")
    lines.add_row("", "driver", escape(", ".join(filter(None, (adapter["backend"], adapter["driver"])))))
    lines.add_row("", "features", ", ".join(adapter["features"]) or "none of those that matter")
    lines.add_row("", "limits", _limits(adapter["limits"]))
    return lines
