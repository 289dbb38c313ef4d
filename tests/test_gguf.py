"""GGUF files: their weights taken exactly, whole models, damaged files, a real one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from torch import Tensor

from torch_webgpu.llm import ModelError, gguf, load
from torch_webgpu.llm.load import default_model
from torch_webgpu.llm.quant import QuantisedWeight

DEVICE = "webgpu"


def close(got: Tensor, want: Tensor) -> None:
    """The same but for the order of sums."""
    assert got.shape == want.shape
    assert (got.cpu() - want).norm() / want.norm() < 1e-5


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(11)


TYPES = {"Q4_0": 0.1, "Q4_1": 0.1, "Q8_0": 0.01}  # error of rounding normal numbers


def stored(kind: str, values: Tensor, name: str = "x") -> gguf.StoredTensor:
    data = quantize(values.numpy(), GGMLQuantizationType[kind])
    return gguf.StoredTensor(name, kind, tuple(values.shape), data.view(np.uint8).reshape(values.shape[0], -1))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_stored_weights_are_taken_exactly(kind: str) -> None:
    values = torch.randn(12, 96)
    t = stored(kind, values)
    q = t.quantised()
    assert torch.equal(q.dequantise(), t.numbers()) and (q.dequantise() - values).norm() / values.norm() < TYPES[kind]
    order = torch.randperm(12)
    assert torch.equal(q.reordered(order).dequantise(), t.numbers()[order])


def write_model(path: Path, head: str, layer: str, tied: bool = True, arch: str = "llama") -> None:
    """A file of a tiny model whose embedding and output are stored as ``head``, its other layers as ``layer``."""
    writer, wide = GGUFWriter(path, arch), 128 if arch == "qwen3" else 16  # of a head
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_key_length, wide),
        (writer.add_value_length, wide),
        (writer.add_vocab_size, 40),
    ):
        add(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(40)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 40)
    shapes = {"token_embd": (40, 64)} | ({} if tied else {"output": (40, 64)})
    shapes |= {"blk.0.attn_q": (4 * wide, 64), "blk.0.attn_k": (2 * wide, 64), "blk.0.attn_v": (2 * wide, 64)}
    shapes |= {
        "blk.0.attn_output": (64, 4 * wide),
        "blk.0.ffn_gate": (96, 64),
        "blk.0.ffn_up": (96, 64),
        "blk.0.ffn_down": (64, 96),
    }
    for name, shape in shapes.items():
        kind = GGMLQuantizationType[head if name in ("token_embd", "output") else layer]
        values = (torch.randn(shape) / 8).numpy()
        writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)
    vectors = {f"{name}.weight": 64 for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")}
    if arch == "qwen2":
        vectors |= {"blk.0.attn_q.bias": 64, "blk.0.attn_k.bias": 32, "blk.0.attn_v.bias": 32}
    if arch == "qwen3":
        vectors |= {"blk.0.attn_q_norm.weight": wide, "blk.0.attn_k_norm.weight": wide}
    for name, size in vectors.items():
        writer.add_tensor(name, (torch.rand(size) + 0.5).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def filled(config: Any, metadata: dict[str, Any], tensors: dict[str, gguf.StoredTensor], request: gguf.Request) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    gguf.fill(model, metadata, tensors, torch.float32, request)
    return model.eval()


@pytest.fixture
def _no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny files have none."""
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: None)


@pytest.mark.usefixtures("_no_tokenizer")
@pytest.mark.parametrize(
    ("head", "layer", "tied", "request_", "kinds", "bound"),
    [
        ("Q8_0", "Q4_1", True, "int4", ("int8", "int4"), 1e-5),
        ("Q4_0", "Q4_0", False, "gguf", ("int4", "int4"), 1e-5),
        ("Q5_1", "Q4_0", True, "int4", ("int8", "int4"), 0.05),
        ("Q8_0", "Q8_0", True, "int4", ("int4", "int4"), 0.3),
        ("Q8_0", "Q4_1", False, "int8", ("int8", "int8"), 0.05),
        ("F16", "Q5_1", True, "gguf", (None, None), 1e-5),
        ("F32", "BF16", False, "int8", ("int8", "int8"), 0.05),
    ],
)
def test_gguf_kinds(
    tmp_path: Path, head: str, layer: str, tied: bool, request_: Any, kinds: tuple[Any, Any], bound: float
) -> None:
    """Which kinds come of a file, and that the model computes what transformers makes of it."""
    write_model(tmp_path / "tiny.gguf", head, layer, tied)
    model, _ = load(str(tmp_path), device="cpu", quantize=request_)
    kind_of = lambda m: m.quantised.kind if hasattr(m, "quantised") else None  # noqa: E731
    assert (kind_of(model.lm_head), kind_of(model.model.layers[0].self_attn.q_proj)) == kinds
    assert kind_of(model.model.layers[0].mlp.down_proj) == kinds[1]
    if tied and kinds[0]:
        assert model.lm_head.quantised is model.model.embed_tokens.quantised
    want, _ = load(str(tmp_path / "tiny.gguf"), device="cpu")
    ids = torch.arange(12)[None]
    with torch.no_grad():
        a, b = model(ids).logits, want(ids).logits
        assert (a - b).norm() / b.norm() < bound
        if bound < 1e-4:
            close(model.to(DEVICE)(ids.to(DEVICE)).logits, b)


@pytest.mark.usefixtures("_no_tokenizer")
@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_gguf_of_other_architectures(tmp_path: Path, arch: str) -> None:
    """Rows as they are, biases and norms of heads beside quantised weights."""
    write_model(tmp_path / "tiny.gguf", "Q8_0", "Q4_0", arch=arch)
    model, _ = load(str(tmp_path), device="cpu", quantize="gguf")
    want, _ = load(str(tmp_path), device="cpu")
    assert (arch == "qwen2") == (model.model.layers[0].self_attn.q_proj.bias is not None)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        close(model(ids).logits, want(ids).logits)


def test_gguf_that_does_not_fit(tmp_path: Path) -> None:
    from transformers import AutoConfig

    write_model(tmp_path / "tiny.gguf", "Q8_0", "Q4_1")
    metadata, tensors = gguf.read(tmp_path / "tiny.gguf")
    config = AutoConfig.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    norm = tensors["output_norm.weight"]
    for changed, message in (
        ({k: t for k, t in tensors.items() if k != "blk.0.ffn_up.weight"}, "no tensor for model.layers.0.mlp.up_proj"),
        (tensors | {"blk.0.ffn_gate_inp.weight": norm}, "no place for blk.0.ffn_gate_inp"),
        (tensors | {"blk.0.attn_v.weight": tensors["blk.0.ffn_up.weight"]}, r"shape \[96, 64\], the model needs \[32, 64\]"),
    ):
        with pytest.raises(gguf.GGUFError, match=message):
            filled(config, metadata, changed, "gguf")


def test_real_file() -> None:
    """SmolLM2-135M, stored as Q4_1 with a table of Q8_0: the very numbers of the file, in a fifth of the memory."""
    from transformers import LlamaConfig

    metadata, tensors = gguf.read(default_model())
    config = LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings=True,
    )
    model = filled(config, metadata, tensors, "int4")
    found = {id(m): m for m in model.modules() if isinstance(m, QuantisedWeight)}.values()
    floats = sum(4 * m.shape[0] * m.shape[1] for m in found)
    assert len(found) == 211 and floats > 0.99 * 4 * 134_515_008 and sum(m.nbytes for m in found) < 0.2 * floats
    attention = model.model.layers[29].self_attn
    q = tensors["blk.29.attn_q.weight"].numbers().view(9, 32, 2, 576).transpose(1, 2).reshape(576, 576)
    assert torch.equal(attention.q_proj.quantised.dequantise(), q)
    assert torch.equal(attention.o_proj.quantised.dequantise(), tensors["blk.29.attn_output.weight"].numbers())
    assert torch.equal(model.lm_head.quantised.dequantise(), tensors["token_embd.weight"].numbers())
    ids = torch.tensor([[504, 3575, 282, 4649, 314]])  # "The capital of France is"
    with torch.no_grad():
        logits = model.to(DEVICE)(ids.to(DEVICE)).logits.cpu()[0]
    assert logits.argmax(-1).tolist() == [29, 282, 260, 314, 7042]  # the last: " Paris"
    # What transformers computes with this file's weights in float32 on the CPU: the largest logits, and those of token 1000.
    want = torch.tensor(
        [[27.353374, 22.056040, 12.942582, 23.772076, 17.371262], [19.620964, 12.863232, 2.780253, 11.343569, 2.867240]]
    )
    close(torch.stack([logits.amax(-1), logits[:, 1000]]), want)


def test_load_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'int8', 'int4', 'gguf' or None, not 'int2'"):
        load(quantize="int2")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no GGUF file"):
        load(str(tmp_path), quantize="gguf")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_model(tmp_path / "good.gguf", "Q8_0", "Q4_1")
    good = (tmp_path / "good.gguf").read_bytes()
    for data, message in (
        (b"", "no GGUF file"),
        (b"PK\x03\x04" + good[4:], "no GGUF file"),
        (good[:4] + struct.pack(">I", 3) + good[8:], "big-endian"),
        (good[:300], "cut short"),
        (good[:-4000], "cut short or damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(gguf.GGUFError, match=message):
            gguf.read(path)
    metadata, tensors = gguf.read(tmp_path / "good.gguf")
    assert metadata["general.architecture"] == "llama" and tensors["blk.0.attn_k.weight"].shape == (32, 64)
    assert gguf.supported(metadata) and not gguf.supported({"general.architecture": "mamba"})
