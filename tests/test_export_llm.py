"""Language models as bundles: tokens against PyTorch on the CPU, prompts in pieces, sampling, tokenizers, errors."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from replaying import Replayer, fill, generate
from torch import Tensor, nn

from torch_webgpu.errors import ExportError
from torch_webgpu.llm.quant import quantise
from torch_webgpu.llm.sampling import sample
from torch_webgpu.web import export_llm
from torch_webgpu.web.build import rounded
from torch_webgpu.web.language import CHECK_SENTENCE, CHECK_TOKENS, _check

pytestmark = pytest.mark.once
CONTEXT, PROMPTS = 44, (8, 32)


@torch.no_grad()
def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    """What the CPU says, without a cache."""
    found = list(ids)
    for _ in range(count):
        found.append(int(model(torch.tensor([found])).logits[0, -1].float().argmax()))
    return found[len(ids) :]


def prompt(size: int) -> list[int]:
    return torch.randint(1, models.VOCABULARY, (size,), generator=torch.Generator().manual_seed(size)).tolist()


def tokenizer() -> Any:
    """Words of the alphabet, one token each, and a template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<end>": 0, **{chr(97 + i): i + 1 for i in range(26)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    return fast


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle for the tests that need any."""
    folder = tmp_path_factory.mktemp("llama") / "out"
    model = models.causal("llama-3-1")
    model.generation_config.update(do_sample=True, temperature=0.7, top_k=20, top_p=0.9, eos_token_id=[5, 9])
    export_llm(model, folder, tokenizer=tokenizer(), context=CONTEXT, prompts=PROMPTS, name="small")
    yield folder


def check_tokens(folder: Path, model: Any, variants: tuple[str, ...] = ("base",)) -> None:
    """A prompt within one plan, and one that takes two plans and, at the end of the cache, single steps."""
    for variant in variants:
        replayer = Replayer(folder, variant)
        for size, count in ((5, 8), (42, 3)):
            assert generate(replayer, prompt(size), count) == greedy(model, prompt(size), count)


def test_tokens(llama: Path) -> None:
    """Both variants choose the CPU's tokens; the second prompt finds the first one's cache."""
    check_tokens(llama, models.causal("llama-3-1"), ("base", "subgroups"))


@pytest.mark.parametrize(
    ("name", "dtype", "cached", "layer"),
    [
        ("gpt2-5", "f16", 5 * 16 * 2, "transformer.h.0.mlp.c_fc"),
        ("gemma2-4-2", "int4", 2 * 16 * 4, "model.layers.0.mlp.up_proj"),
    ],
)
def test_families(name: str, dtype: Any, cached: int, layer: str, tmp_path: Path) -> None:
    """Learned positions and attention within a window, in other dtypes: as the same model on the CPU.

    ``cached`` are the bytes that each key has; the model that was handed over stays as it is.
    """
    model = models.causal(name)
    before = model.get_submodule(layer).weight.clone()
    made = export_llm(model, tmp_path / "out", dtype=dtype, context=CONTEXT, prompts=PROMPTS)
    assert torch.equal(model.get_submodule(layer).weight, before)
    check_tokens(tmp_path / "out", nn.Module.to(model, torch.float16) if dtype == "f16" else quantise(model, dtype))
    assert made.about["dtype"] == dtype
    assert made.language is not None
    cache = [made.buffers[n] for n in made.language.cache]
    assert {b.role for b in cache} == {"state"} and not any(b.data for b in cache)
    assert [b.size for b in cache] == 4 * [rounded(cached * CONTEXT)]


def test_language(llama: Path) -> None:
    """What ``bundle.json`` tells a runtime; the tokenizer's files make the same tokenizer again."""
    from transformers import AutoTokenizer

    language = Replayer(llama).bundle.language
    assert language is not None
    assert (language.length, language.vocabulary, language.prompts) == (CONTEXT, models.VOCABULARY, list(PROMPTS))
    assert language.ends == [0, 5, 9]
    assert language.defaults == {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    assert language.files == ["tokenizer.json", "tokenizer_config.json"]
    again = AutoTokenizer.from_pretrained(str(llama))
    assert again("b z a").input_ids == tokenizer()("b z a").input_ids == [2, 26, 1]
    assert language.template == tokenizer().chat_template
    assert "chat_template" not in json.loads((llama / "tokenizer_config.json").read_text())


@pytest.mark.parametrize(("sharpness", "clear"), [(0.1, 0), (400.0, CHECK_TOKENS)])
def test_what_a_page_compares(sharpness: float, clear: int) -> None:
    """The CPU's tokens, as long as each is clearly ahead; none of a model that is never sure."""
    model = models.causal("llama-3-1")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight * sharpness)
    device_model = copy.deepcopy(model).to("webgpu")
    found = _check(device_model, tokenizer(), CONTEXT)
    if not clear:
        assert found is None
        return
    assert found is not None and found.prompt == tokenizer()(CHECK_SENTENCE).input_ids
    assert found.tokens == greedy(model, found.prompt, clear)
    assert _check(device_model, tokenizer(), len(found.prompt) + 2) == found.model_copy(update={"tokens": found.tokens[:3]})
    assert _check(device_model, None, CONTEXT) is None


# ---------------------------------------------------------------------------------------------------- sampling


def settings(replayer: Replayer, temperature: float, top_k: int, top_p: float) -> None:
    state = replayer.bundle.language.state  # type: ignore[union-attr]
    replayer.write(state["temperature"], torch.tensor([temperature]))
    replayer.write(state["top_k"], torch.tensor([top_k], dtype=torch.int32))
    replayer.write(state["top_p"], torch.tensor([top_p]))


def drawn(replayer: Replayer, choice: Any, logits: Tensor, count: int) -> list[int]:
    """Tokens that a sampling plan draws from the same logits."""
    language = replayer.bundle.language
    assert language is not None
    replayer.write(language.state["count"], torch.tensor([0]))
    for _ in range(count):
        replayer.write(language.state["logits"], logits)
        replayer.run(language.sampling[choice])
    found = [int(t) for t in replayer.read(language.state["tokens"])[:count]]
    assert int(replayer.read(language.state["token"])) == found[-1]
    assert int(replayer.read(language.state["count"])) == count
    return found


LOGITS = 2 * torch.randn(1, models.VOCABULARY, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("choice", "options"),
    [
        ("greedy", {"temperature": 0.0}),
        ("temperature", {"temperature": 0.8}),
        ("top-p", {"temperature": 1.5, "top_p": 0.7}),
        ("top-k", {"temperature": 1.5, "top_k": 128, "top_p": 0.8}),
    ],
)
def test_draws(choice: str, options: dict[str, Any], llama: Path) -> None:
    """The same tokens as ``sample`` draws on the device with the same seed."""
    replayer = Replayer(llama)
    replayer.seed = 7
    settings(replayer, options["temperature"], options.get("top_k", 1), options.get("top_p", 1.0))
    torch.get_device_module("webgpu").manual_seed(7)
    want = [int(sample(LOGITS.to("webgpu"), **options)) for _ in range(12)]
    assert drawn(replayer, choice, LOGITS, 12) == want
    assert len(set(want)) > 4 or choice == "greedy"


def test_restrictions(llama: Path) -> None:
    """The k likeliest tokens alone, and of them those that reach a probability."""
    replayer = Replayer(llama)
    order = LOGITS[0].argsort(descending=True).tolist()
    settings(replayer, 5.0, 4, 1.0)
    found = set(drawn(replayer, "top-k", LOGITS, 40))
    assert found <= set(order[:4]) and len(found) > 2
    settings(replayer, 5.0, 1, 1.0)
    assert set(drawn(replayer, "top-k", LOGITS, 8)) == {order[0]}
    for choice in ("top-k", "top-p"):
        settings(replayer, 5.0, 128, 1e-6)
        assert set(drawn(replayer, choice, LOGITS, 8)) == {order[0]}


@pytest.mark.parametrize("choice", ["greedy", "temperature", "top-p", "top-k"])
def test_nan(choice: str, llama: Path) -> None:
    """NaN among the logits are reported, whatever place they have, and the next choice is right."""
    replayer = Replayer(llama)
    settings(replayer, 1.0, 1, 1.0)
    broken = LOGITS.clone()
    broken[0, 77] = float("nan")
    with pytest.raises(RuntimeError, match="no token can be chosen, as the logits of a row hold NaN"):
        drawn(replayer, choice, broken, 1)
    settings(replayer, 1.0, 1, 1e-6)
    fine = torch.full_like(LOGITS, -1e4)
    fine[0, 13] = 0.0
    assert drawn(replayer, choice, fine, 1) == [13]


def test_going_on(llama: Path) -> None:
    """Part of a prompt that the cache holds need not be run again."""
    replayer = Replayer(llama)
    state = replayer.bundle.language.state  # type: ignore[union-attr]
    fill(replayer, prompt(20))
    replayer.write(state["position"], torch.tensor(13))
    rest = torch.tensor([[*prompt(20)[13:], 0]])
    replayer.run("prompt-8", ids=rest, size=torch.tensor([7]))
    again = replayer.read(state["logits"])
    assert int(replayer.read(state["position"])) == 20
    with torch.no_grad():
        want = models.causal("llama-3-1")(torch.tensor([prompt(20)])).logits[:, -1]
    torch.testing.assert_close(again, want, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"context": 300}, ExportError, "a context of 300 tokens: between 2 and 256 are possible"),
        ({"context": 1}, ExportError, "a context of 1 tokens"),
        ({"prompts": ()}, ExportError, "2 tokens at least"),
        ({"prompts": (1, 4)}, ExportError, "2 tokens at least"),
        ({"dtype": "int3"}, ValueError, "one of f32, f16, int8, int4, not 'int3'"),
        ({"limits": {"maxBufferSize": 1}}, ExportError, "which every device grants"),
    ],
)
def test_errors(options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        export_llm(models.causal("llama-3-1"), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_other_models(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="Linear is no language model of transformers"):
        export_llm(nn.Linear(3, 3), tmp_path / "out")
    with pytest.raises(ExportError, match=r"training mode; call .eval\(\)"):
        export_llm(models.causal("llama-3-1").train(), tmp_path / "out")
    with pytest.raises(Exception, match="cannot be loaded"):
        export_llm(tmp_path, tmp_path / "out")
