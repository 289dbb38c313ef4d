"""``torch-webgpu generate``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .console import device_name, err, fail, load_torch, out, quiet, reported

if TYPE_CHECKING:
    from ..llm import Sampling


class DType(str, Enum):
    """Dtypes of weights and activations."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


class Quantized(str, Enum):
    """Kinds of quantised weights; ``gguf``: as the file has them."""

    int8 = "int8"
    int4 = "int4"
    gguf = "gguf"


@dataclass(frozen=True)
class Request:
    """What to generate, and how."""

    prompt: str
    model: str | None
    dtype: str
    quantize: str | None
    device: str
    max_new_tokens: int
    sampling: Sampling
    seed: int
    cache_length: int | None
    eager: bool
    compare: str | None


class TokenStream:
    """Keeps tokens and their times, writes text as soon as its characters are complete; a streamer for ``generate()``."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        from ..llm.text import Detokenizer

        self._text, self._write = Detokenizer(tokenizer), write
        self._prompt_seen = False
        self.ids: list[int] = []
        self.times: list[float] = []
        self.began = time.perf_counter()
        self.compiled: float | None = None  # seconds it took
        self.interrupted = False

    def token(self, token: int) -> None:
        """Takes the next token."""
        self.ids.append(token)
        self.times.append(time.perf_counter())
        if text := self._text.push(token):
            self._write(text)

    def put(self, value: Any) -> None:
        """The streamer's protocol: the prompt comes first, then one token at a time."""
        if self._prompt_seen:
            for token in value.flatten().tolist():
                self.token(token)
        self._prompt_seen = True

    def end(self) -> None:
        """Writes what was held back."""
        self._write(self._text.finish())

    @property
    def first(self) -> float:
        """Seconds to the first token; NaN where there is none."""
        return self.times[0] - self.began if self.times else float("nan")

    @property
    def speed(self) -> float:
        """Tokens per second after the first; NaN for fewer than two."""
        seconds = self.times[-1] - self.times[0] if self.times else 0.0
        return (len(self.times) - 1) / seconds if seconds else float("nan")


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    model: Annotated[
        str | None, typer.Option(help="Hub name, folder or GGUF file.", show_default="SmolLM2-135M-Instruct")
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Dtype of weights and activations.")] = DType.float32,
    quantize: Annotated[
        Quantized | None, typer.Option(help="Quantised weights; gguf takes a file's as they are.", show_default="none")
    ] = None,
    device: Annotated[str, typer.Option(help="Any PyTorch device; others than webgpu run eagerly.")] = "webgpu",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token; above, tokens are drawn, the flatter the higher.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draws from the K likeliest.", show_default="all")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Draws from this much probability.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds, equal text.")] = 0,
    cache_length: Annotated[
        int | None, typer.Option(min=2, help="Tokens that prompt and text may have.", show_default="as many as needed")
    ] = None,
    eager: Annotated[bool, typer.Option("--eager", help="transformers' own loop, op by op, not plans.")] = False,
    compare: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Generate there too (cpu) and check token by token.")
    ] = None,
) -> None:
    """Continues a text with a language model, token by token."""
    if temperature == 0 and (top_k is not None or top_p is not None):
        raise fail("--top-k and --top-p say how tokens are drawn; that needs a --temperature above 0.")
    if compare and temperature > 0:
        raise fail("--compare checks greedy generation; leave --temperature out.")
    quiet()
    with reported():
        with err.status("Loading PyTorch…"):
            from ..llm import Sampling
        try:
            sampling = Sampling(temperature, top_k, top_p)
        except ValueError as e:
            raise fail(f"{e}.") from None
        kind = quantize.value if quantize else None
        eagerly = eager or not device.startswith("webgpu")
        request = Request(
            prompt, model, dtype.value, kind, device, max_new_tokens, sampling, seed, cache_length, eagerly, compare
        )
        code = _generate(request)
    if code:
        raise typer.Exit(code)


def _generate(request: Request) -> int:
    """Generates, compares, reports; returns the exit code."""
    with err.status("Loading PyTorch…") as status:
        load_torch()
        import torch

        from ..llm import load

        _check_devices(request)
        status.update("Loading the model…")
        start = request.compare or ("cpu" if request.eager else request.device)
        quantize: Any = request.quantize
        model, tokenizer = load(request.model, getattr(torch, request.dtype), start, quantize)
        _check_length(request, model, tokenizer)
        reference = None
        if request.compare:
            status.update(f"Generating on {request.compare}…")
            reference = _eager(model, tokenizer, request, lambda _: None)
        status.update(f"Moving the model to {request.device}…")
        model.to(request.device)
        described = device_name(request.device)
    run = (_eager if request.eager else _compiled)(model, tokenizer, request, _show)
    out.print("\n")
    _report(run, request, described)
    if run.interrupted:
        return 130
    if reference is None:
        return 0
    out.print(f"[dim]{escape(str(request.compare))}: {reference.speed:.1f} tok/s[/]")
    return 0 if _compare(tokenizer, run.ids, reference.ids, request.device, str(request.compare)) else 1


def _check_devices(request: Request) -> None:
    import torch

    from ..llm import ModelError

    for wanted in (request.device, request.compare or "cpu"):
        try:
            torch.empty(0, device=wanted)
        except (RuntimeError, AssertionError, NotImplementedError) as e:
            if wanted.startswith("webgpu"):
                raise
            raise ModelError(f"No device {wanted!r} here: {str(e).splitlines()[0]}") from e


def _check_length(request: Request, model: Any, tokenizer: Any) -> None:
    """Whether prompt and new tokens fit cache and model, before anything is generated."""
    from ..llm import ModelError
    from ..llm.generator import positions

    size = len(tokenizer(request.prompt).input_ids)
    if size == 0:
        raise ModelError("The prompt has no tokens; write one.")
    needed, limit = size + request.max_new_tokens - 1, positions(model)
    for most, what in ((request.cache_length, "--cache-length"), (limit, "the model's positions")):
        if most is not None and needed > most:
            raise ModelError(
                f"{size} tokens of prompt and {request.max_new_tokens} new ones do not fit {most}, {what}; "
                f"--max-new-tokens may be {max(most - size + 1, 0)}."
            )


def _compiled(model: Any, tokenizer: Any, request: Request, write: Callable[[str], None]) -> TokenStream:
    """A plan replayed for each token."""
    from ..llm import ModelError
    from ..llm.text import encode, generator_for

    ids = encode(tokenizer, request.prompt)
    stream = TokenStream(tokenizer, write)
    try:
        with err.status("Compiling…"):
            needed = ids.numel() + request.max_new_tokens - 1
            generator = generator_for(model, needed, request.sampling, request.cache_length)
            start = time.perf_counter()
            generator.compile(ids)
            stream.compiled = time.perf_counter() - start
        out.print(f"[dim]{escape(request.prompt)}[/]", end="", soft_wrap=True)
        stream.began = time.perf_counter()
        for token in generator.stream(ids, request.max_new_tokens, seed=request.seed):
            stream.token(token)
    except KeyboardInterrupt:
        stream.interrupted = True
    except ValueError as e:
        raise ModelError(str(e)) from e
    except RuntimeError as e:
        if not str(e).startswith("sample:"):
            raise
        raise ModelError(str(e).removeprefix("sample: ")) from e
    stream.end()
    return stream


def _eager(model: Any, tokenizer: Any, request: Request, write: Callable[[str], None]) -> TokenStream:
    """transformers' own loop."""
    import torch

    inputs = tokenizer(request.prompt, return_tensors="pt").to(model.device)
    s = request.sampling
    sampled: dict[str, Any] = {"temperature": s.temperature, "top_k": s.top_k or 0, "top_p": s.top_p or 1.0}
    options = sampled if s.temperature > 0 else dict.fromkeys(sampled)
    torch.manual_seed(request.seed)
    if write is _show:
        out.print(f"[dim]{escape(request.prompt)}[/]", end="", soft_wrap=True)
    stream = TokenStream(tokenizer, write)
    try:
        model.generate(
            **inputs,
            streamer=stream,
            do_sample=s.temperature > 0,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
            max_new_tokens=request.max_new_tokens,
            **options,
        )
    except KeyboardInterrupt:
        if write is not _show:  # nothing was shown yet
            raise
        stream.interrupted = True
        stream.end()
    return stream


def _show(text: str) -> None:
    out.print(text, end="", markup=False, soft_wrap=True)
    out.file.flush()


def _report(run: TokenStream, request: Request, described: str) -> None:
    """Counts and times, below the text."""
    state = " [yellow](interrupted)[/]" if run.interrupted else ""
    text = f"[bold]{len(run.ids)} tokens[/]{state}, first after {run.first:.2f} s, then {run.speed:.1f} tok/s"
    if run.compiled is not None:
        text += f"; compiled in {run.compiled:.1f} s"
    out.print(text, soft_wrap=True)
    how = "op by op" if request.eager else "compiled"
    weights = f"{request.dtype}, {request.quantize} weights" if request.quantize else request.dtype
    out.print(f"[dim]{escape(described)}, {weights}, {how}[/]", soft_wrap=True)


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
