"""Tokens on the device: a compiled decode step replayed token after token, read back in blocks."""

from __future__ import annotations

import gc
import inspect
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..compiler.executor import CompiledGraph
from ..compiler.trace_cache import Program
from .sampling import check_arguments, sample

LARGEST_BLOCK = 16  # tokens queued before the host looks at them,
BLOCK_SECONDS = 0.05  # as long as that takes no longer: tokens then arrive smoothly, and little is computed in vain
SMALLEST_PROMPT = 16  # tokens to which a prompt is padded at least
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Attributes of a generator and its model that what is compiled does not read.
_UNREAD = frozenset((
    "_step", "_compiled", "_compiled_fill", "_generation", "_used", "_random", "_unread", "_spoilt", "compile_prompts",
    "generation_config",
))  # fmt: skip


def padded_size(size: int, length: int) -> int:
    """Tokens to which a prompt is padded, so that few sizes occur: at most a quarter more, and at most ``length``."""
    step = max(SMALLEST_PROMPT, (1 << (size - 1).bit_length()) // 8)
    return min(-(-size // step) * step, length)


def end_tokens(model: Any) -> frozenset[int]:
    """The tokens that end a text, as the model's generation configuration has them."""
    found: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if found is None:
        found = getattr(model.config.get_text_config(decoder=True), "eos_token_id", None)
    return frozenset() if found is None else token_set(found)


def token_set(tokens: int | Iterable[int]) -> frozenset[int]:
    """One token or several as a set."""
    return frozenset(int(token) for token in (tokens if isinstance(tokens, Iterable) else [tokens]))


def positions(model: Any) -> int | None:
    """Tokens that a model can tell apart by position; None where it sets no bound."""
    return getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen; ``temperature`` 0 is greedy. See ``sampling.sample``."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        check_arguments(self.temperature, self.top_k, self.top_p)


class Generator:
    """A causal language model with a static cache, and plans: one for the decode step, one for each size of prompts.

    The step takes its token and position from the device and leaves the next ones there, so that many steps can be queued
    without waiting. Tokens are read while later ones are computed.
    """

    def __init__(self, model: Any, length: int, sampling: Sampling | None = None, *, compile_prompts: bool = True) -> None:
        """
        Args:
            model: a Hugging Face causal language model on the webgpu device, in evaluation mode.
            length: tokens the cache holds, prompt included.
            sampling: greedy unless given.
            compile_prompts: prompts run as plans, one for each of a few sizes; False runs them op by op, which begins sooner
                (a plan of any prompt takes as long to make as the step's) and is as exact.

        Raises:
            ValueError: for a length below 2 or above what the model's positions allow, or a model that is elsewhere, in
                training mode, of another dtype, or no decoder with attention alone.
        """
        from .cache import DecodeCache  # which needs transformers, as the module does not

        check_model(model)
        limit = positions(model)
        if not isinstance(length, int) or length < 2 or (limit is not None and length > limit):
            raise ValueError(f"a cache of {length} tokens: between 2 and {limit or 'any number of'} are possible")
        self.model, self.length, self.sampling = model, length, sampling or Sampling()
        self.device, self.dtype = model.device, model.dtype
        with _plain_tensors():
            self.cache = DecodeCache(model.config, length, 1, self.dtype, self.device)
            self._token = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
            self._tokens = torch.zeros((length,), dtype=torch.int64, device=self.device)
            self._count = torch.zeros((1,), dtype=torch.int64, device=self.device)
        names = inspect.signature(type(model).forward).parameters  # transformers renamed it in version 5
        self._with_cache = {"cache" if "cache" in names else "past_key_values": self.cache}
        self.compile_prompts = compile_prompts
        self._step: tuple[CompiledGraph, list[Any]] | None = None
        self._compiled = Program(self._decode, _UNREAD, dynamic=False)
        self._compiled_fill = Program(self._fill, _UNREAD)
        self._generation = 0  # counts the prompts, so that a stream notices that another has taken its cache
        self._used = 0  # tokens in the cache, once all that is queued has run
        self._random: torch.Tensor | None = None  # this generation's state of the random generator; None: the default one's
        self._unread: list[tuple[Any, int]] = []  # of streams that ended early
        self._spoilt = False  # the cache may hold NaN

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        s = self.sampling
        return sample(logits[:, -1].float(), s.temperature, s.top_k, s.top_p)

    def _decode(self) -> None:
        logits = self.model(input_ids=self._token, use_cache=True, **self._with_cache).logits
        self._keep(self._choose(logits))

    def _fill(self, ids: torch.Tensor, size: torch.Tensor) -> None:
        """The prompt, padded at its end: what is padding comes after all that is read, and is overwritten later."""
        logits = self.model(input_ids=ids, use_cache=True, logits_to_keep=size - 1, **self._with_cache).logits
        self.cache.occupy(size)
        self._keep(self._choose(logits))

    def _keep(self, token: torch.Tensor) -> None:
        self._tokens.index_copy_(0, self._count, token)
        self._count.add_(1)
        self._token.copy_(token[None])

    def check_prompt(self, prompt: Sequence[int] | torch.Tensor, max_new_tokens: int = 1) -> torch.Tensor:
        """The prompt as int64 [1, T] on the CPU.

        Raises:
            ValueError: for an empty prompt, several sequences, text, tokens outside of the vocabulary, a number of tokens
                that is none, or more tokens than the cache holds.
        """
        try:
            ids = torch.as_tensor(prompt).cpu()
        except (TypeError, ValueError, RuntimeError) as e:
            found = repr(prompt) if len(repr(prompt)) < 40 else f"{repr(prompt)[:36]} ..."
            raise ValueError(
                f"a prompt is the token ids of one text, [T] or [1, T], as a tokenizer makes; got {found}"
            ) from e
        if ids.numel() == 0:
            raise ValueError("the prompt is empty; it needs at least one token")
        if ids.dim() > 2 or (ids.dim() == 2 and ids.shape[0] != 1):
            raise ValueError(
                f"a prompt of shape {list(ids.shape)}: this generates one sequence at a time, [T] or [1, T]; for a batch "
                "use model.generate(..., cache_implementation='static')"
            )
        if ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
            raise ValueError(f"a prompt of {ids.dtype}: tokens are integers")
        ids = ids.to(torch.int64).reshape(1, -1)
        vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise ValueError(f"the prompt holds tokens outside of the vocabulary of {vocabulary}")
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be a whole number of at least 1, got {max_new_tokens}")
        needed = ids.shape[1] + max_new_tokens - 1  # the last token is never looked at
        if needed > self.length:
            raise ValueError(
                f"{ids.shape[1]} tokens of prompt and {max_new_tokens} new ones do not fit a cache of {self.length}; "
                f"make it with length={needed}"
            )
        return ids

    def prefill(self, prompt: Sequence[int] | torch.Tensor, seed: int | None = None) -> None:
        """Runs the prompt from an empty cache and chooses the first token. The first one ever compiles.

        Args:
            prompt: token ids, [T] or [1, T].
            seed: of this generation's draws, which then neither depend on the device's default generator nor advance it.

        Raises:
            ValueError: as ``check_prompt``.
        """
        ids = self.check_prompt(prompt)
        size = ids.shape[1]
        self._generation += 1
        self._used = 0
        self._settle()
        self._random = None if seed is None else torch.Generator(self.device).manual_seed(seed).get_state()
        with _plain_tensors(), self._drawing():
            if self._spoilt:
                self.cache.clear()
                self._spoilt = False
            self._count.zero_()
            if self.compile_prompts:
                padded = torch.nn.functional.pad(ids, (0, padded_size(size, self.length) - size)).to(self.device)
                torch._dynamo.maybe_mark_dynamic(padded, 1)
                with self.cache.filling(), uncollected():
                    self._compiled_fill(padded, torch.tensor([size], device=self.device))
            else:
                self.cache.rewind()
                out = self.model(input_ids=ids.to(self.device), use_cache=True, logits_to_keep=1, **self._with_cache)
                self._keep(self._choose(out.logits))
        self._used = size

    def compile(self, prompt: Sequence[int] | torch.Tensor) -> None:
        """Compiles for prompts of about this length, and the step where there is room for one; waits for it.

        Generation compiles by itself; this is for those who want to know when, or time the rest alone.
        """
        self.prefill(prompt)
        self.advance(min(1, self.length - self._used))
        torch.get_device_module("webgpu").synchronize()

    def advance(self, steps: int) -> None:
        """Queues decode steps; returns without waiting. The first one ever compiles.

        Raises:
            RuntimeError: without a prompt.
            ValueError: where the cache has no room for them.
        """
        if self._used == 0:
            raise RuntimeError("nothing to go on from: prefill comes first")
        if self._used + steps > self.length:
            raise ValueError(
                f"cache overflow: it holds {self._used} of {self.length} tokens, {steps} more do not fit; make it with "
                f"length={self._used + steps}"
            )
        with _plain_tensors(), self._drawing():
            if steps and self._step is None:
                with uncollected():
                    self._step = self._compiled()
                self._used += 1
                steps -= 1
            if steps and self._step is not None:
                graph, inputs = self._step
                graph.run(list(inputs), steps)
                self._used += steps

    def stream(
        self,
        prompt: Sequence[int] | torch.Tensor,
        max_new_tokens: int,
        eos: int | Iterable[int] | None = None,
        seed: int | None = None,
    ) -> Iterator[int]:
        """Yields tokens as they arrive, the end-of-sequence token included. It may be left at any time.

        Args:
            prompt: token ids, [T] or [1, T].
            max_new_tokens: at most.
            eos: tokens that end the text; None are the model's own, () is none.
            seed: as for ``prefill``.

        Raises:
            ValueError: at once, as ``check_prompt``.
            RuntimeError: while it runs: for NaN logits, and where another generation was begun on this object.
        """
        ids = self.check_prompt(prompt, max_new_tokens)
        return self._stream(ids, max_new_tokens, end_tokens(self.model) if eos is None else token_set(eos), seed)

    def _stream(self, ids: torch.Tensor, max_new_tokens: int, ends: frozenset[int], seed: int | None) -> Iterator[int]:
        self.prefill(ids, seed)
        generation, queued, block = self._generation, 1, 1
        reads = [self._read(0, 1)]
        try:
            if self._step is None:  # compiling takes longer than the first token does
                yield from (first := self._finish(reads.pop()))
                if first[0] in ends:
                    return
            before = time.perf_counter()
            while reads or queued < max_new_tokens:
                if self._generation != generation:
                    raise RuntimeError(
                        "another generation was begun on this Generator; make one for each that runs at a time"
                    )
                if queued < max_new_tokens:
                    more = min(block, max_new_tokens - queued)
                    self.advance(more)
                    reads.append(self._read(queued, queued + more))
                    queued += more
                    if len(reads) == 1:
                        continue
                tokens = self._finish(reads.pop(0))
                before, seconds = (now := time.perf_counter()), now - before
                block = max(1, min(2 * block, LARGEST_BLOCK, int(BLOCK_SECONDS * len(tokens) / seconds)))
                for token in tokens:
                    yield token
                    if token in ends:
                        return
        finally:
            self._unread += reads

    def _read(self, start: int, end: int) -> tuple[Any, int]:
        return _C.begin_read(self._tokens[start:end]), end - start

    def _finish(self, read: tuple[Any, int]) -> tuple[int, ...]:
        try:
            return struct.unpack(f"<{read[1]}q", _C.finish_read(read[0]))
        except RuntimeError:
            self._spoilt = True
            raise

    def _settle(self) -> None:
        """Ends the reads that nobody waited for: an error of tokens that nobody wanted is nobody's error."""
        unread, self._unread = self._unread, []
        for read in unread:
            try:
                self._finish(read)
            except RuntimeError as e:
                if not str(e).startswith("sample:"):
                    raise

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Inside, the device draws from this generation's random numbers, if it has its own."""
        if self._random is None:
            yield
            return
        default = torch.get_device_module("webgpu")
        others = default.get_rng_state()
        default.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = default.get_rng_state()
            default.set_rng_state(others)

    def __call__(
        self,
        prompt: Sequence[int] | torch.Tensor,
        max_new_tokens: int,
        eos: int | Iterable[int] | None = None,
        seed: int | None = None,
    ) -> list[int]:
        """All tokens of ``stream`` at once."""
        return list(self.stream(prompt, max_new_tokens, eos, seed))


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """No gradients; and none of inference mode's tensors, which could not be written outside of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection: tracing makes millions of objects that stay; looking through them was a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def check_model(model: Any) -> None:
    """Raises ValueError for a model that cannot be generated from here."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{type(model).__name__} has an encoder; only decoders are generated from here: use model.generate")
    if model.device.type != "webgpu":
        raise ValueError(f"the model is on {model.device}; move it with model.to('webgpu')")
    if model.training:
        raise ValueError("the model is in training mode; call model.eval()")
    if model.dtype not in DTYPES:
        raise ValueError(f"a model of {model.dtype}: float32, float16 and bfloat16 are possible")
