"""Generation of text: pieces of characters, stop strings, ``generate`` and ``stream``, and transformers' own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from generating import greedy, no_fallbacks, prompt_of, small  # noqa: F401

from torch_webgpu.compiler import backend
from torch_webgpu.llm import generate, stream
from torch_webgpu.llm.text import Detokenizer, StopText


class Letters:
    """A tokenizer of one character a token, where 99 is half of one; the first is shown without its space."""

    def __call__(self, text: str) -> Any:
        return type("Encoding", (), {"input_ids": [ord(c) for c in text]})

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of the ids."""
        return "".join("\ufffd" if i == 99 else chr(i) for i in ids).removeprefix(" ")


def test_detokenizer() -> None:
    text = Detokenizer(Letters())
    pieces = [text.push(token) for token in (32, 104, 99, 105, 32, 106, 99)]
    assert pieces == ["", "h", "", "\ufffdi", " ", "j", ""] and text.finish() == "\ufffd"


def test_stop_text() -> None:
    def cut(pieces: list[str], *stops: str) -> tuple[list[str], bool]:
        stop = StopText(stops)
        return [*map(stop.push, pieces), stop.finish()], stop.found

    assert cut(["ab", "c", "d"], "bc") == (["a", "", "", ""], True)
    assert cut(["ab", "b", "cd"], "bc", "x") == (["a", "b", "", ""], True)
    assert cut(["a--", "-b-"], "--->") == (["a", "---b", "-"], False)
    assert cut(["xay"], "y", "a") == (["x", ""], True)
    for wrong in ("text", [""]):
        with pytest.raises(ValueError, match="stop must be a sequence of strings"):
            StopText(wrong)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    """``generate`` and ``stream``: one generator for calls alike, stop strings, progress, errors at once."""
    reference, model = small()
    ids, tokenizer = prompt_of(6), Letters()
    want = greedy(reference, ids, 30)
    text = tokenizer.decode([0, *want])[1:]
    seen: list[int] = []
    assert "".join(stream(model, tokenizer, ids, 30, on_token=seen.append)) == text and seen == want
    made, graphs = model.__dict__["_webgpu_generator"].generator, len(backend.compiled)
    assert generate(model, tokenizer, torch.tensor([ids]), 30, stop=(text[12:14],)) == text[: text.index(text[12:14])]
    assert generate(model, tokenizer, ids, 30, eos=[want[3]]) == text[: want.index(want[3]) + 1]
    assert generate(model, tokenizer, ids, 30, progress=True) == text and capsys.readouterr().out == ""
    assert model.__dict__["_webgpu_generator"].generator is made and len(backend.compiled) == graphs
    assert copy.deepcopy(model).__dict__["_webgpu_generator"].generator is None
    assert generate(model, tokenizer, "AB", 3) == generate(model, tokenizer, [65, 66], 3)
    for call, message in (
        (lambda: stream(model, tokenizer, "", 3), "the prompt has no tokens"),
        (lambda: stream(model, tokenizer, ["a", "b"], 3), "one prompt at a time"),  # type: ignore[list-item]
        (lambda: stream(model, tokenizer, "a", 300), "need 300 positions, the model has 256"),
        (lambda: stream(model, tokenizer, "abcd", 6, cache_length=8), "do not fit a cache of 8"),
        (lambda: stream(model, tokenizer, "a", 3, temperature=-1), "temperature must be"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# ---------------------------------------------------------------------------------------------------- transformers


def by_transformers(model: Any, prompt: list[int], count: int, **options: Any) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    options = {"do_sample": False, "pad_token_id": 0, "cache_implementation": "static"} | options
    return model.generate(ids, max_new_tokens=count, min_new_tokens=count, **options)[0, len(prompt) :].tolist()


@pytest.mark.parametrize("own", [False, True])
def test_generate_of_transformers(own: bool) -> None:
    """A compiled forward, or transformers' own compilation of it (``own``): no compilation a token, no fallback."""
    from transformers import CompileConfig

    reference, model = small()[0], copy.deepcopy(small()[1])
    options: dict[str, Any] = {}
    if own:
        options["compile_config"] = CompileConfig(backend="webgpu")
        options["compile_config"]._compile_all_devices = True
    else:
        model.forward = torch.compile(model.forward, backend="webgpu")
    before = len(backend.compiled)
    want = greedy(reference, prompt_of(9), 20)
    assert by_transformers(model, prompt_of(9), 20, **options) == want
    graphs = len(backend.compiled) - before
    assert graphs == (1 if own else 2)  # a step; a prompt
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(by_transformers(model, prompt_of(9), 20, do_sample=True, temperature=1.5, top_k=40, **options))
    assert drawn[0] == drawn[1] != drawn[2]
    assert by_transformers(model, prompt_of(9), 20, **options) == want
    assert len(backend.compiled) - before <= graphs + 1  # a prompt for a cache that is there already
