"""A static key/value cache for compiled decoding."""

from __future__ import annotations

from typing import Any

import torch
from transformers import StaticCache
from transformers.cache_utils import StaticLayer


class _SharedLayer(StaticLayer):
    """A layer whose position is the whole cache's: the last layer advances it, so that one step costs one launch for it."""

    last = False

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new keys and values (B, H, M, D) at the next M slots; returns the whole cache (B, H, L, D)."""
        if not self.is_initialized:
            raise RuntimeError("the cache is used before DecodeCache made its tensors")
        count = key_states.shape[-2]
        slots = torch.arange(count, device=self.device) + self.cumulative_length
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        if self.last:
            self.cumulative_length.add_(count)
        return self.keys, self.values


class DecodeCache(StaticCache):
    """Hugging Face's StaticCache, made at once, with one position for all layers.

    Models with sliding-window layers keep those as Hugging Face has them.
    """

    def __init__(self, config: Any, length: int, batch: int, dtype: torch.dtype, device: torch.device | str) -> None:
        """
        Args:
            config: of the model.
            length: tokens that fit, prompt included.
        """
        super().__init__(config=config, max_cache_len=length)
        text = config.get_text_config(decoder=True)
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.length = length
        plain = all(type(layer) is StaticLayer for layer in self.layers)
        if plain:
            self.layers = [_SharedLayer(max_cache_len=length) for _ in self.layers]
        self.early_initialization(batch, heads, width, dtype, torch.device(device))
        if plain:
            for layer in self.layers:
                layer.cumulative_length = self.layers[0].cumulative_length
            self.layers[-1].last = True

    def rewind(self) -> None:
        """Empties the cache; what its slots hold is never read."""
        for layer in self.layers:
            layer.cumulative_length.zero_()
