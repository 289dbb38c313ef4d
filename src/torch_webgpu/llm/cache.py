"""A static key/value cache for compiled decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer


class _SharedLayer(StaticLayer):
    """A layer whose position is the whole cache's: the last layer advances it, so that one step costs one launch for it.

    While ``filling``, tokens go into an empty cache and attend to each other alone; the position stays: the owner sets it.
    """

    last = False
    filling = False

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new keys and values (B, H, M, D) at the next M slots; returns the whole cache (B, H, L, D)."""
        if self.keys is None or self.values is None:
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


def head_sizes(config: Any) -> tuple[int, int]:
    """Number of key-value heads of a model, and the width of each."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return heads, getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


class DecodeCache(StaticCache):
    """Hugging Face's StaticCache, made at once, with one position for all layers.

    Layers with a sliding window keep all tokens too, and the model's mask hides those outside of the window: Hugging Face's
    own count tokens in Python, which a replayed step cannot.
    """

    def __init__(self, config: Any, length: int, batch: int, dtype: torch.dtype, device: torch.device | str) -> None:
        """
        Args:
            config: of the model.
            length: tokens that fit, prompt included.

        Raises:
            ValueError: for a model with layers of another kind (a recurrent state, attention in chunks).
        """
        super().__init__(config=config, max_cache_len=length)
        others = {
            type(layer).__name__ for layer in self.layers if type(layer) not in (StaticLayer, StaticSlidingWindowLayer)
        }
        if others:
            raise ValueError(f"a model with {', '.join(sorted(others))} cannot be decoded from here; use model.generate")
        self.length = length
        self._shared = [_SharedLayer(max_cache_len=length) for _ in self.layers]
        self.layers = list(self._shared)
        self.early_initialization(batch, *head_sizes(config), dtype, torch.device(device))
        self.position: torch.Tensor = self._shared[0].cumulative_length
        for layer in self._shared:
            layer.cumulative_length = self.position
        self._shared[-1].last = True

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Inside, a model call fills an empty cache from its first slot on; ``occupy`` then says how far."""
        for layer in self._shared:
            layer.filling = True
        try:
            yield
        finally:
            for layer in self._shared:
                layer.filling = False

    def occupy(self, count: torch.Tensor) -> None:
        """Sets the number of tokens that the cache holds, a tensor of one element."""
        self.position.copy_(count.reshape(self.position.shape))

    def rewind(self) -> None:
        """Empties the cache; what its slots hold is never read."""
        self.position.zero_()

    def clear(self) -> None:
        """Empties the cache and its slots: NaN would spread even from where a mask hides it."""
        self.rewind()
        for slots in (t for pair in self.slots() for t in pair):
            slots.zero_()

    def slots(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer, (B, H, L, D)."""
        found = []
        for layer in self._shared:
            assert layer.keys is not None and layer.values is not None
            found.append((layer.keys, layer.values))
        return found
