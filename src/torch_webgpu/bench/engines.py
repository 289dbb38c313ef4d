"""Ways to run a language model, all behind prefill and decode: PyTorch op by op or compiled, the package's generator."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch

from .places import wait


class Engine(Protocol):
    """A model ready to generate greedily, one sequence at a time."""

    def prefill(self, ids: torch.Tensor) -> int:
        """Runs the prompt [1, T] from an empty cache; returns the first token, on the host."""

    def decode(self, count: int) -> list[int]:
        """Generates further tokens and returns them, after one wait at the end."""


def cache_argument(model: Any) -> str:
    """What the model's ``forward`` calls the cache: transformers renamed it in version 5."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


class TorchEngine:
    """A Hugging Face model on any device of PyTorch, with the greedy choice on the device.

    Op by op the cache grows, as ``generate`` has it by default; a compiled step has a static one.
    """

    def __init__(self, model: Any, device: str, length: int, how: dict[str, Any] | None = None) -> None:
        """
        Args:
            model: on the device.
            length: tokens that the static cache holds.
            how: arguments of ``torch.compile`` for the step; None runs op by op.
        """
        self.model, self.device, self._name = model, device, cache_argument(model)
        self._length, self._compiled = length, how is not None
        self._cache: Any = None
        self._used = 0
        self._step = torch.compile(self._forward, fullgraph=True, **how) if how is not None else self._forward
        # Inductor's own modes for the step say nothing of prompts; on a CPU each length would take minutes to compile.
        compiles = how is not None and device == "cuda"
        self._prompt = torch.compile(self._forward, dynamic=False) if compiles else self._forward
        self._token = torch.zeros((1, 1), dtype=torch.int64)

    def _forward(self, token: torch.Tensor) -> torch.Tensor:
        logits = self.model(token, logits_to_keep=1, use_cache=True, **{self._name: self._cache}).logits
        return logits[:, -1:].argmax(-1)

    @torch.no_grad()
    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the last position, on the CPU."""
        return self.model(ids.to(self.device), logits_to_keep=1, use_cache=False).logits[:, -1].float().cpu()

    @torch.no_grad()
    def prefill(self, ids: torch.Tensor) -> int:
        """See ``Engine``."""
        from transformers import DynamicCache, StaticCache

        from ..llm.cache import head_sizes

        model = self.model
        if not self._compiled:
            self._cache = DynamicCache(config=model.config)
        elif self._cache is None:
            self._cache = StaticCache(config=model.config, max_cache_len=self._length)
            # Here rather than in the compiled prompt, which would not mark the cache's addresses as lasting: CUDA's
            # graphs would be left out.
            self._cache.early_initialization(1, *head_sizes(model.config), model.dtype, torch.device(self.device))
        else:
            self._cache.reset()
        self._token = self._prompt(ids.to(self.device))
        return int(self._token.item())

    @torch.no_grad()
    def decode(self, count: int) -> list[int]:
        """See ``Engine``."""
        found = self.advance(count)
        tokens = torch.cat(found, 1)[0].tolist() if found else []
        wait(self.device)
        return tokens

    @torch.no_grad()
    def advance(self, count: int) -> list[torch.Tensor]:
        """Queues ``count`` steps and returns their tokens [1, 1], without a wait."""
        found = []
        for _ in range(count):
            token = self._step(self._token)
            self._token = token.clone() if self._compiled else token  # a CUDA graph writes its result to one place
            found.append(self._token)
        return found


class GeneratorEngine:
    """The package's compiled generator on the webgpu device: plans of prompt and step, replayed."""

    def __init__(self, model: Any, length: int) -> None:
        from ..llm import Generator

        self.generator = Generator(model, length)
        self._made = 0

    def prefill(self, ids: torch.Tensor) -> int:
        """See ``Engine``."""
        self.generator.prefill(ids)
        self._made = 1
        return int(self.generator._tokens[0].item())

    def decode(self, count: int) -> list[int]:
        """See ``Engine``."""
        self.generator.advance(count)
        start, self._made = self._made, self._made + count
        return self.generator._tokens[start : start + count].tolist()  # type: ignore[no-any-return]


def greedy(engine: Engine, ids: torch.Tensor, count: int) -> list[int]:
    """``count`` tokens after a prompt."""
    first = engine.prefill(ids)
    return [first, *engine.decode(count - 1)]
