"""The command line: ``torch-webgpu info``, ``torch-webgpu generate``, ``torch-webgpu tune`` and ``torch-webgpu explain``."""

from __future__ import annotations

import json
import os
import time
import warnings
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .explain_cli import explain

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    help='A PyTorch device for WebGPU: device="webgpu".',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

#: The limits that decide what fits, and whether they are bytes.
_SHOWN_LIMITS = {
    "maxBufferSize": ("buffer", True),
    "maxStorageBufferBindingSize": ("binding", True),
    "maxComputeWorkgroupStorageSize": ("workgroup memory", True),
    "maxComputeInvocationsPerWorkgroup": ("invocations", False),
    "maxStorageBuffersPerShaderStage": ("storage buffers", False),
}


class DType(str, Enum):
    """Dtypes of weights."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def _fail(message: str, code: int = 2) -> typer.Exit:
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    return typer.Exit(code)


def _bytes(count: int) -> str:
    value, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while value >= 1023.995 and len(units) > 1:  # 4 GiB less one byte is 4 GiB to a reader
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def _limits(limits: dict[str, int]) -> str:
    known = ((text, is_bytes, limits.get(key)) for key, (text, is_bytes) in _SHOWN_LIMITS.items())
    return ", ".join(f"{text} {_bytes(n) if is_bytes else n}" for text, is_bytes, n in known if n is not None)


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="One JSON document and nothing else.")] = False) -> None:
    """Shows versions, implementations and adapters, which one is taken, and what is missing."""
    from .diagnostics import collect

    try:
        if as_json:
            facts = collect()
        else:
            with err.status("Asking for adapters…"):
                facts = collect()
    except ValueError as e:
        raise _fail(str(e)) from None
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


class TokenStream:
    """A streamer for ``generate()``: keeps ids and times, and prints text as soon as its characters are complete."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer, self._write = tokenizer, write
        self._prompt_seen, self._shown = False, 0
        self.ids: list[int] = []
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Takes the prompt first, then one token at a time."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.ids += value.flatten().tolist()
        self.times.append(time.perf_counter())
        self._print(self._tokenizer.decode(self.ids, skip_special_tokens=True), final=False)

    def end(self) -> None:
        """Prints what was held back."""
        self._print(self._tokenizer.decode(self.ids, skip_special_tokens=True), final=True)

    def _print(self, text: str, final: bool) -> None:
        if final or not text.endswith("\ufffd"):  # half of a character
            self._write(text[self._shown :])
            self._shown = len(text)


def _run(
    model: Any, tokenizer: Any, prompt: str, write: Callable[[str], None], **options: Any
) -> tuple[list[int], float, float]:
    """Generates; returns the new ids, seconds to the first of them, and tokens per second after it."""
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    stream = TokenStream(tokenizer, write)
    began = time.perf_counter()
    model.generate(**inputs, streamer=stream, pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id, **options)
    first = stream.times[0] - began if stream.times else float("nan")
    rest = stream.times[-1] - stream.times[0] if len(stream.times) > 1 else 0.0
    return stream.ids, first, (len(stream.times) - 1) / rest if rest else float("nan")


def _compare(tokenizer: Any, ids: list[int], expected: list[int], device: str, reference: str) -> bool:
    """Says how far two generations agree; True where they are equal."""
    count = max(len(ids), len(expected))
    equal = sum(a == b for a, b in zip(ids, expected, strict=False))
    if equal == count:
        out.print(f"[bold green]{equal} of {count} tokens equal[/] ({device} and {reference})")
        return True
    at = next((i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), min(len(ids), len(expected)))
    out.print(f"[bold red]{equal} of {count} tokens equal[/] ({device} and {reference}); they part at position {at}:")
    for name, found in ((device, ids), (reference, expected)):
        token = f"{found[at]} {tokenizer.decode([found[at]])!r}" if at < len(found) else "the end"
        out.print(f"  {name}: {escape(token)}", soft_wrap=True)
    return False


def _quiet() -> None:
    """Silences the bars and notices of transformers and its helpers (to be called before they are imported).

    What else warns, says so in one line.
    """
    for name, value in {
        "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "critical",
    }.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", module=r"(transformers|huggingface_hub|gguf|accelerate)\b")

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

    warnings.showwarning = show


def _device_name(device: str) -> str:
    import torch

    if not device.startswith("webgpu"):
        return device
    properties = torch.get_device_module("webgpu").get_device_properties()
    return f"{device}: {properties.name} ({properties.implementation}, {properties.backend})"


def _show(text: str) -> None:
    out.print(text, end="", markup=False, soft_wrap=True)
    out.file.flush()


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    model: Annotated[
        str | None, typer.Option(help="Hub name, folder or GGUF file.", show_default="SmolLM2-135M-Instruct")
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Dtype of the weights.")] = DType.float32,
    device: Annotated[str, typer.Option(help="Any PyTorch device.")] = "webgpu",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 64,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(min=0.01, help="With --sample: flattens (above 1) or sharpens.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="With --sample: only the K likeliest; 0 is all.")] = 50,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="With --sample: only this much probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="With --sample: equal seeds, equal text.")] = 0,
    compare: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Generate there too (cpu) and check token by token.")
    ] = None,
) -> None:
    """Continues a text with a language model, token by token."""
    if compare and sample:
        raise _fail("--compare checks greedy generation; leave --sample out.")
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": sample}
    if sample:
        options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    else:
        options |= {"temperature": None, "top_k": None, "top_p": None}
    try:
        equal = _generate(prompt, model, dtype.value, device, seed, compare, options)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as e:
        if not _is_users(e):
            raise
        raise _fail(str(e)) from None
    if not equal:
        raise typer.Exit(1)


def _is_users(error: Exception) -> bool:
    """Whether the message alone tells the user what to do."""
    from .errors import LimitError, MissingImplementationError, NoAdapterError, OutOfMemoryError
    from .llm import ModelError

    return isinstance(error, (ModelError, NoAdapterError, MissingImplementationError, OutOfMemoryError, LimitError))


def _generate(
    prompt: str, name: str | None, dtype: str, device: str, seed: int, compare: str | None, options: dict[str, Any]
) -> bool:
    _quiet()
    with err.status("Loading PyTorch…") as status:
        import torch

        from . import _autoload
        from .llm import ModelError, load

        _autoload()
        for wanted in (device, compare or "cpu"):
            try:
                torch.empty(0, device=wanted)
            except (RuntimeError, AssertionError, NotImplementedError) as e:
                if wanted.startswith("webgpu"):
                    raise
                raise ModelError(f"No device {wanted!r} here: {str(e).splitlines()[0]}") from e
        status.update("Loading the model…")
        model, tokenizer = load(name, getattr(torch, dtype), compare or "cpu")
        expected: list[int] = []
        if compare:
            status.update(f"Generating on {compare}…")
            expected, _, reference_speed = _run(model, tokenizer, prompt, lambda _: None, **options)
        status.update(f"Moving the model to {device}…")
        model.to(device)
        described = _device_name(device)
    torch.manual_seed(seed)
    out.print(f"[dim]{escape(prompt)}[/]", end="", soft_wrap=True)
    ids, first, speed = _run(model, tokenizer, prompt, _show, **options)
    out.print("\n")
    out.print(f"[bold]{len(ids)} tokens[/], first after {first:.2f} s, then {speed:.1f} tok/s", soft_wrap=True)
    out.print(f"[dim]{escape(described)}, {dtype}[/]", soft_wrap=True)
    if not compare:
        return True
    out.print(f"[dim]{escape(compare)}: {reference_speed:.1f} tok/s[/]")
    return _compare(tokenizer, ids, expected, device, compare)


class Kind(str, Enum):
    """Kinds of weights that have a matrix-vector kernel."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"
    int4 = "int4"


def _products(shapes: list[str], kinds: list[Kind]) -> list[Any]:
    """Products to time from texts such as ``896x1152`` (K x N) and ``896x4864x2`` (two matrices in one launch)."""
    from .kernels.measure import Product

    parsed = []
    for text in (part for argument in shapes for part in argument.split(",")):
        numbers = [int(n) for n in text.split("x") if n.isdecimal()]
        if len(numbers) != text.count("x") + 1 or len(numbers) not in (2, 3) or min(numbers) < 1 or numbers[0] % 32:
            raise _fail(f"{text!r} is no shape: write KxN or KxNxS, like 896x4864x2, with K a multiple of 32.")
        parsed.append((*numbers, 1)[:3])
    epilogue = {1: "residual", 2: "gated"}
    return [
        Product(kind.value, k, n, streams, epilogue=epilogue.get(streams, "")) for kind in kinds for k, n, streams in parsed
    ]


@app.command()
def tune(
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="KxN, KxNxS for S matrices in one launch; commas between.", show_default="Qwen2.5-0.5B's"),
    ] = None,
    kind: Annotated[list[Kind] | None, typer.Option(help="Kind of weights.", show_default="float32, float16")] = None,
    time_limit: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Measures no longer than this.")] = 120,
) -> None:
    """Times shapes of the matrix-vector kernel on this adapter, and remembers the best for all later runs."""
    kinds = kind or [Kind.float32, Kind.float16]
    products = _products(shapes or ["896x896,896x4864x2,4864x896,896x1152,896x151936"], kinds)
    try:
        _tune(products, time_limit)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as e:
        if not _is_users(e):
            raise
        raise _fail(str(e)) from None


def _tune(products: list[Any], seconds: float) -> None:
    _quiet()
    with err.status("Loading PyTorch…") as status:
        from . import _autoload

        _autoload()
        from .kernels import tuning
        from .kernels.measure import ENOUGH, Bench, entry, search

        described = _device_name("webgpu")
        table = Table("product", "µs", "GB/s", "shape of the kernel", title=escape(described), title_justify="left")
        for column in table.columns[1:3]:
            column.justify = "right"
        end, written = time.perf_counter() + seconds, 0
        for i, product in enumerate(products):
            if (now := time.perf_counter()) > end:
                break
            status.update(f"{product} ({i + 1} of {len(products)})…")
            timed = search(Bench(product), now + 2 * (end - now) / (len(products) - i))
            best = min(timed, key=timed.__getitem__)
            table.add_row(str(product), f"{timed[best]:.2f}", f"{product.bytes / timed[best] / 1e3:.0f}", str(best))
            if len(timed) >= ENOUGH:
                tuning.write(tuning.user_file(), [entry(product, timed)])
                written += 1
    out.print(table)
    if written < len(products):
        short = f"Time is up: {len(products) - written} products were not measured well enough; see --time-limit."
        err.print(f"[yellow]{short}[/]", soft_wrap=True)
    if written:
        out.print(f"[dim]Written to {escape(str(tuning.user_file()))}; delete it to forget.[/]", soft_wrap=True)


app.command()(explain)

if __name__ == "__main__":
    app()
