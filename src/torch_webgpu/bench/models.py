"""Language models that are measured: published ones with their weights, or of their shape with random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

PROMPT = "The capital of France is"
#: What Qwen2.5's tokenizer makes of the prompt, for models without a tokenizer.
PROMPT_IDS = (785, 6722, 315, 9625, 374)

_QWEN = {"vocab_size": 151936, "tie_word_embeddings": True, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
#: Shapes of Qwen2 models with random weights; ``tiny`` is for trying things out.
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": _QWEN
    | {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    | {"intermediate_size": 4864},
    "Qwen2.5-1.5B": _QWEN
    | {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2}
    | {"intermediate_size": 8960},
    "tiny": _QWEN
    | {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
    | {"intermediate_size": 128, "max_position_embeddings": 512},
}
SMOLLM2 = "SmolLM2-135M"
NAMES = (*SHAPES, SMOLLM2)


@dataclass(frozen=True)
class Loaded:
    """A model on the CPU, in evaluation mode.

    Attributes:
        prompt: token ids of the prompt.
        real: whether the weights are the published ones.
        note: where the weights come from.
    """

    model: Any
    prompt: tuple[int, ...]
    real: bool
    note: str

    def context(self, length: int) -> torch.Tensor:
        """Token ids [1, length] that are the same in every process."""
        vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
        return torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(length))


def positions_of(name: str, path: str | None) -> int | None:
    """Tokens that a model tells apart, found without loading its weights; None where that would need them.

    Raises:
        ModelError: for a path without a model.
    """
    if path is None:
        return None if name == SMOLLM2 else int(SHAPES[name].get("max_position_embeddings", 32768))
    from transformers import AutoConfig

    from ..llm import ModelError
    from ..llm.load import locate

    source, keywords = locate(path)
    try:
        config = AutoConfig.from_pretrained(source, **keywords)
    except (OSError, ValueError, KeyError) as e:
        reason = str(e).strip().splitlines()
        raise ModelError(f"There is no model in {path!r}: {reason[0] if reason else type(e).__name__}") from e
    found: int | None = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return found


def load_model(name: str, path: str | None, dtype: str, layers: int | None) -> Loaded:
    """A model of ``NAMES``, or with ``path`` one on the hub, in a folder, or of a GGUF file.

    Args:
        dtype: of weights and activations.
        layers: the first so many alone, for machines that are too small for all.

    Raises:
        ModelError: for a path without a model, or more layers than there are.
    """
    if path is not None or name == SMOLLM2:
        return _published(path, getattr(torch, dtype), layers)
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = dict(SHAPES[name])
    check_layers(layers, shape["num_hidden_layers"])
    shape["num_hidden_layers"] = layers or shape["num_hidden_layers"]
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(Qwen2Config(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=0))
    prompt = tuple(i % shape["vocab_size"] for i in PROMPT_IDS)
    note = "random weights" + (f", {layers} layers" if layers else "")
    return Loaded(model.to(getattr(torch, dtype)).eval(), prompt, False, note)


def _published(path: str | None, dtype: torch.dtype, layers: int | None) -> Loaded:
    from ..llm import ModelError, load

    model, tokenizer = load(path, dtype, "cpu")
    note = f"weights of {path or SMOLLM2}"
    if layers is not None:
        text = model.config.get_text_config(decoder=True)
        check_layers(layers, text.num_hidden_layers)
        if layers < text.num_hidden_layers:
            note += f", the first {layers} of {text.num_hidden_layers} layers alone"
        text.num_hidden_layers = layers
        model.model.layers = model.model.layers[:layers]
    prompt = tuple(tokenizer(PROMPT).input_ids)
    if not prompt:
        raise ModelError(f"The tokenizer of {path or SMOLLM2} makes no tokens of {PROMPT!r}.")
    return Loaded(model, prompt, True, note)


def check_layers(layers: int | None, most: int) -> None:
    """Raises ModelError for a number of layers that the model has not."""
    from ..llm import ModelError

    if layers is not None and not 1 <= layers <= most:
        raise ModelError(f"{layers} layers: the model has {most}; give a number between 1 and {most}.")


def same(found: Sequence[int], expected: Sequence[int]) -> int:
    """Tokens that are equal before the first difference."""
    count = 0
    for a, b in zip(found, expected, strict=False):
        if a != b:
            break
        count += 1
    return count
