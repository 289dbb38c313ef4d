"""Generation on the device: a compiled decode step replayed token after token, read back in blocks."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..compiler.executor import CompiledGraph, recorded
from .cache import DecodeCache
from .sampling import check_arguments, sample

LARGEST_BLOCK = 16  # tokens queued before the host looks at them
SMALLEST_PROMPT = 16  # tokens to which a prompt is padded at least


def padded_size(size: int, length: int) -> int:
    """Tokens to which a prompt is padded, so that few sizes occur: a quarter more at most, the cache's length at most."""
    step = max(SMALLEST_PROMPT, (1 << (size - 1).bit_length()) // 8)
    return min(-(-size // step) * step, length)


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen; ``temperature`` 0 is greedy. See ``sampling.sample``."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        check_arguments(self.temperature, self.top_k, self.top_p)


class Generator:
    """A causal language model with a static cache and a compiled decode step.

    The step takes its token and position from the device and leaves the next ones there, so that many steps can be queued
    without waiting. Tokens are read while later ones are computed.
    """

    def __init__(self, model: Any, length: int, sampling: Sampling | None = None) -> None:
        """
        Args:
            model: a Hugging Face causal language model on the webgpu device, in evaluation mode.
            length: tokens the cache holds, prompt included.
            sampling: greedy unless given.

        Raises:
            ValueError: for a length below 2 or above what the model's positions allow.
        """
        limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if length < 2 or (limit is not None and length > limit):
            raise ValueError(f"a cache of {length} tokens: between 2 and {limit or 'any number of'} are possible")
        self.model, self.length, self.sampling = model, length, sampling or Sampling()
        self.device, self.dtype = model.device, model.dtype
        self.cache = DecodeCache(model.config, length, 1, self.dtype, self.device)
        names = inspect.signature(type(model).forward).parameters  # transformers renamed it in version 5
        self._with_cache = {"cache" if "cache" in names else "past_key_values": self.cache}
        self._token = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        self._tokens = torch.zeros((length,), dtype=torch.int64, device=self.device)
        self._count = torch.zeros((1,), dtype=torch.int64, device=self.device)
        self._step: tuple[CompiledGraph, list[Any]] | None = None
        self._compiled = torch.compile(self._decode, backend="webgpu", fullgraph=True, dynamic=False)
        self._compiled_fill = torch.compile(self._fill, backend="webgpu", fullgraph=True)

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

    @torch.no_grad()
    def prefill(self, prompt: Sequence[int] | torch.Tensor) -> None:
        """Runs the prompt from an empty cache and chooses the first token. The first one ever compiles.

        Raises:
            ValueError: for an empty prompt, one longer than the cache, or tokens outside of the vocabulary.
        """
        ids = torch.as_tensor(prompt, dtype=torch.int64).reshape(1, -1)
        size = ids.shape[1]
        if size == 0:
            raise ValueError("the prompt is empty; it needs at least one token")
        if size >= self.length:
            raise ValueError(
                f"a prompt of {size} tokens does not fit a cache of {self.length} with room for a new one; "
                f"make it with length={size + 1} or more"
            )
        vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise ValueError(f"the prompt holds tokens outside of the vocabulary of {vocabulary}")
        self._count.zero_()
        if not self.cache.plain:  # windows of a cache would take padding for tokens
            self.cache.rewind()
            hidden = self.model(input_ids=ids.to(self.device), use_cache=True, logits_to_keep=1, **self._with_cache)
            self._keep(self._choose(hidden.logits))
            return
        padded = torch.nn.functional.pad(ids, (0, padded_size(size, self.length) - size)).to(self.device)
        torch._dynamo.maybe_mark_dynamic(padded, 1)
        with self.cache.filling():
            self._compiled_fill(padded, torch.tensor([size], device=self.device))

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        """Queues decode steps; returns without waiting. The first one ever compiles."""
        if steps and self._step is None:
            with recorded() as calls:
                self._compiled()
            if len(calls) != 1:
                raise RuntimeError(f"the decode step became {len(calls)} graphs; TORCH_LOGS=graph_breaks says why")
            self._step = calls[0]
            steps -= 1
        if steps and self._step is not None:
            graph, inputs = self._step
            graph.run(list(inputs), steps)

    def stream(self, prompt: Sequence[int] | torch.Tensor, max_new_tokens: int, eos: Sequence[int] = ()) -> Iterator[int]:
        """Yields tokens as they arrive, the end-of-sequence token included.

        Args:
            prompt: token ids, [T] or [1, T].
            max_new_tokens: at most, and at most what the cache still holds.
            eos: tokens that end the text.

        Raises:
            ValueError: as ``prefill``, and for ``max_new_tokens`` below 1 or beyond the cache.
        """
        size = int(torch.as_tensor(prompt).numel())
        if max_new_tokens < 1 or size + max_new_tokens > self.length:
            raise ValueError(
                f"{size} tokens of prompt and {max_new_tokens} new ones do not fit a cache of {self.length}; "
                f"make it with length={size + max(max_new_tokens, 1)}"
            )
        self.prefill(prompt)
        ends = frozenset(eos)
        queued, block = 1, 1
        reads = [self._read(0, 1)]
        while reads:
            if queued < max_new_tokens:
                more = min(block, max_new_tokens - queued)
                self.advance(more)
                reads.append(self._read(queued, queued + more))
                queued += more
                block = min(2 * block, LARGEST_BLOCK)
            for token in self._finish(reads.pop(0)):
                yield token
                if token in ends:
                    return

    def _read(self, start: int, end: int) -> tuple[Any, int]:
        return _C.begin_read(self._tokens[start:end]), end - start

    def _finish(self, read: tuple[Any, int]) -> tuple[int, ...]:
        return struct.unpack(f"<{read[1]}q", _C.finish_read(read[0]))

    def __call__(self, prompt: Sequence[int] | torch.Tensor, max_new_tokens: int, eos: Sequence[int] = ()) -> list[int]:
        """All tokens of ``stream`` at once."""
        return list(self.stream(prompt, max_new_tokens, eos))
