"""Text from prompts: ``generate`` and ``stream`` for a model and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .generator import Generator, Sampling, positions

CACHE_STEP = 256  # caches made here hold a multiple of this, so that the next prompt probably fits too


class Detokenizer:
    """Turns tokens into text piece by piece; half of a character waits for its other half.

    Only the last tokens are decoded each time. Those of the piece before go with them, since a tokenizer may treat the
    beginning of a text otherwise.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []  # those of the last piece, then those whose text is not out
        self._done = 0  # how many of them are of the last piece

    def push(self, token: int) -> str:
        """The text that a token completes; may be empty."""
        self._tokens.append(token)
        text = self._text()
        return "" if text.endswith("\ufffd") else self._emit(text)

    def finish(self) -> str:
        """What was held back."""
        return self._emit(self._text())

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True)) if tokens else ""

    def _text(self) -> str:
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._done])) :]

    def _emit(self, text: str) -> str:
        if text:
            self._tokens = self._tokens[self._done :]
            self._done = len(self._tokens)
        return text


class StopText:
    """Cuts a text before the first of some strings; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(stops):
            raise ValueError(f"stop must be a sequence of strings that are not empty, got {stops!r}")
        self._stops, self._held = tuple(stops), ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is certainly none of a stop string; all that comes after one is dropped."""
        if self.found:
            return ""
        text = self._held + text
        starts = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if starts:
            self.found, self._held = True, ""
            return text[: min(starts)]
        keep = max((n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back in vain."""
        text, self._held = self._held, ""
        return text


class _Kept:
    """A model's generator for its next prompt. Copies of the model get none."""

    def __init__(self) -> None:
        self.generator: Generator | None = None

    def __deepcopy__(self, memo: Any) -> _Kept:
        return _Kept()

    def __reduce__(self) -> Any:
        return _Kept, ()


def generator_for(model: Any, needed: int, sampling: Sampling, length: int | None = None) -> Generator:
    """The model's generator of an earlier call where it fits, or a new one in its place.

    Args:
        needed: tokens that the cache must hold.
        length: tokens that it shall hold; None is at least ``needed``.

    Raises:
        ValueError: where the model has fewer positions, and as ``Generator``.
    """
    limit = positions(model)
    if limit is not None and max(needed, length or 0) > limit:
        raise ValueError(f"prompt and new tokens need {max(needed, length or 0)} positions, the model has {limit}")
    kept = model.__dict__.setdefault("_webgpu_generator", _Kept())
    found = kept.generator
    fits = found is not None and found.sampling == sampling and (found.device, found.dtype) == (model.device, model.dtype)
    if fits and (found.length == length if length is not None else found.length >= needed):
        return found  # type: ignore[no-any-return]
    kept.generator = None  # before the new cache is made
    size = max(needed, 2) if length is not None else -(-max(needed, 2) // CACHE_STEP) * CACHE_STEP
    kept.generator = Generator(model, length or min(size, limit or size), sampling, compile_prompts=False)
    return kept.generator


def encode(tokenizer: Any, prompt: str | Sequence[int] | torch.Tensor) -> torch.Tensor:
    """Tokens of a prompt that is text, or tokens already.

    Raises:
        ValueError: for several texts, or text without tokens.
    """
    if isinstance(prompt, str):
        ids = torch.tensor(tokenizer(prompt).input_ids, dtype=torch.int64)
        if ids.numel() == 0:
            raise ValueError("the prompt has no tokens")
        return ids
    if not isinstance(prompt, torch.Tensor) and any(not isinstance(token, int) for token in prompt):
        raise ValueError("one prompt at a time: a text, or the tokens of one")
    return torch.as_tensor(prompt)


def stream(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int] | torch.Tensor,
    max_new_tokens: int = 256,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos: int | Iterable[int] | None = None,
    stop: Sequence[str] = (),
    cache_length: int | None = None,
    on_token: Callable[[int], None] | None = None,
) -> Iterator[str]:
    """Continues a text piece by piece, on the device; it may be left at any time.

    The first call for a model compiles the step; later ones with the same sampling, and room in the cache, do not. Prompts
    run op by op, since one plan more would have to pay for itself; a ``Generator`` with compiled prompts suits who has many.

    Args:
        model: a Hugging Face causal language model on the webgpu device (``load`` makes one).
        tokenizer: its tokenizer.
        prompt: a text, or token ids [T] or [1, T] (as ``tokenizer.apply_chat_template`` gives).
        max_new_tokens: at most.
        temperature: 0 takes the likeliest token each time; see ``sampling.sample``, also for ``top_k`` and ``top_p``.
        seed: draws depend on it alone; None goes on with the device's default generator.
        eos: tokens that end the text; None are the model's own, () is none.
        stop: strings that end the text; they are left out.
        cache_length: tokens that the cache holds; None is enough, rounded up.
        on_token: called with each token as it arrives, before its text.

    Raises:
        ValueError: at once, for arguments out of range, and for more tokens than the cache or the model's positions hold.
        RuntimeError: while it runs, for NaN logits.
    """
    ids = encode(tokenizer, prompt)
    ending = StopText(stop)
    generator = generator_for(
        model, ids.numel() + max(max_new_tokens, 1) - 1, Sampling(temperature, top_k, top_p), cache_length
    )
    return _pieces(generator.stream(ids, max_new_tokens, eos, seed), on_token, Detokenizer(tokenizer), ending)


def _pieces(
    tokens: Iterator[int], on_token: Callable[[int], None] | None, text: Detokenizer, ending: StopText
) -> Iterator[str]:
    for token in tokens:
        if on_token is not None:
            on_token(token)
        if piece := ending.push(text.push(token)):
            yield piece
        if ending.found:
            return
    if piece := ending.push(text.finish()) + ending.finish():
        yield piece


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int] | torch.Tensor,
    max_new_tokens: int = 256,
    *,
    progress: bool = False,
    **options: Any,
) -> str:
    """Continues a text; returns what is new.

    Args:
        progress: shows a bar on standard error.
        options: and all else as ``stream``; an interrupt (Ctrl-C) leaves model and device usable.
    """
    if not progress:
        return "".join(stream(model, tokenizer, prompt, max_new_tokens, **options))
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"))
    on_token = options.pop("on_token", None)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=max_new_tokens)

        def count(token: int) -> None:
            bar.update(task, advance=1, description="generating")
            if on_token is not None:
                on_token(token)

        return "".join(stream(model, tokenizer, prompt, max_new_tokens, on_token=count, **options))
