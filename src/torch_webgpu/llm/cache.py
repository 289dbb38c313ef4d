"""A static key/value cache for compiled decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import StaticCache
from transformers.cache_utils import StaticLayer


class _SharedLayer(StaticLayer):
    """A layer whose position is the whole cache's: the last layer advances it, so that one step costs one launch for it.

    While ``filling``, tokens go into an empty cache and see each other alone, and the position stays: the owner sets it.
    """

    last = False
    filling = False

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new keys and values (B, H, M, D) at the next M slots; returns the whole cache (B, H, L, D)."""
        if not self.is_initialized:
            raise RuntimeError("the cache is used before DecodeCache made its tensors")
        count = key_states.shape[-2]
        if self.filling:
            slots = torch.arange(count, device=self.device)
            self.keys.index_copy_(2, slots, key_states)
            self.values.index_copy_(2, slots, value_states)
            return key_states, value_states
        slots = torch.arange(count, device=self.device) + self.cumulative_length
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        if self.last:
            self.cumulative_length.add_(count)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens written so far."""
        return 0 if self.filling else super().get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that the queries see, and the first one's position."""
        return (query_length, 0) if self.filling else super().get_mask_sizes(query_length)


class DecodeCache(StaticCache):
    """Hugging Face's StaticCache, made at once, with one position for all layers.

    Models with sliding-window layers keep those as Hugging Face has them.
    """

    def __init__(self, config: Any, length: int, batch: int, dtype: torch.dtype, device: torch.device | str) -> None:
        """
        Args:
            config: of the model.
            length: tokens that fit, prompt included.

        Attributes:
            plain: whether all layers attend to all tokens.
        """
        super().__init__(config=config, max_cache_len=length)
        text = config.get_text_config(decoder=True)
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.length = length
        self.plain = all(type(layer) is StaticLayer for layer in self.layers)
        if self.plain:
            self.layers = [_SharedLayer(max_cache_len=length) for _ in self.layers]
        self.early_initialization(batch, heads, width, dtype, torch.device(device))
        if self.plain:
            for layer in self.layers:
                layer.cumulative_length = self.layers[0].cumulative_length
            self.layers[-1].last = True

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Inside, a model call fills an empty cache from its first slot on; ``occupy`` then says how far.

        Only for caches that are ``plain``.
        """
        layers: list[Any] = self.layers
        for layer in layers:
            layer.filling = True
        try:
            yield
        finally:
            for layer in layers:
                layer.filling = False

    def occupy(self, count: torch.Tensor) -> None:
        """Sets the number of tokens that the cache holds, a tensor of one element."""
        layers: list[Any] = self.layers[:1] if self.plain else self.layers
        for layer in layers:
            layer.cumulative_length.copy_(count.reshape(layer.cumulative_length.shape))

    def rewind(self) -> None:
        """Empties the cache; what its slots hold is never read."""
        for layer in self.layers:
            layer.cumulative_length.zero_()
