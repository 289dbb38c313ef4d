"""GGUF files: their 4- and 8-bit weights go to the device as they are; nothing is dequantised that need not be.

Layout of a file (little-endian): magic, version, counts; metadata; one entry a tensor; the tensors, aligned.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .quant import Kind, QuantisedWeight, layers, replacement, unfit

log = logging.getLogger(__name__)

_BLOCKS = {  # of 32 weights
    "Q4_0": np.dtype([("scale", "<f2"), ("nibbles", "<u4", (4,))]),
    "Q4_1": np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("nibbles", "<u4", (4,))]),
    "Q8_0": np.dtype([("scale", "<f2"), ("values", "i1", (32,))]),
}
_IGNORED = {"rope_freqs.weight"}  # frequencies that transformers computes from its configuration
_PERMUTED = {"llama"}  # architectures whose query and key rows are interleaved for llama.cpp's rotary embedding
ARCHITECTURES = {"llama", "qwen2", "qwen3"}  # whose tensors are otherwise those of the transformers model
Request = Literal["int8", "int4", "gguf"]


class GGUFError(RuntimeError):
    """A file cannot be read this way; the message says why."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        kind: name of the storage type (``F32``, ``Q4_1``, …).
        shape: rows first, as in PyTorch.
        data: bytes, [rows, bytes a row].
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]

    def numbers(self) -> Tensor:
        """The tensor in float32."""
        from gguf import GGMLQuantizationType, dequantize

        if self.kind in ("F32", "F16"):
            flat = self.data.view(np.float32 if self.kind == "F32" else np.float16)
            return torch.from_numpy(flat.astype(np.float32)).view(self.shape)
        values = dequantize(self.data, GGMLQuantizationType[self.kind])
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(self.shape)

    def quantised(self) -> QuantisedWeight:
        """The same weights in the package's format; exact. For Q4_0, Q4_1 and Q8_0."""
        blocks = np.asarray(self.data).view(_BLOCKS[self.kind])  # [rows, blocks a row]

        def part(name: str) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(blocks[name]))

        if self.kind == "Q8_0":
            return QuantisedWeight(part("values").view(self.shape), part("scale"))
        words = torch.from_numpy(_in_order(np.ascontiguousarray(blocks["nibbles"])).view(np.int32))
        return QuantisedWeight(
            words.view(self.shape[0], -1), part("scale"), part("minimum") if self.kind == "Q4_1" else None
        )


def _in_order(words: np.ndarray[Any, np.dtype[np.uint32]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Nibbles of blocks, uint32 [..., 4]: from byte j holding elements j and j + 16 to word j // 8 holding element j."""

    def squeezed(x: Any) -> Any:  # the low nibble of each byte, side by side in the lower half
        x = x & 0x0F0F0F0F
        x = (x | (x >> 4)) & 0x00FF00FF
        return (x | (x >> 8)) & 0xFFFF

    halves = np.concatenate((squeezed(words), squeezed(words >> 4)), axis=-1)
    return np.asarray(halves[..., 0::2] | (halves[..., 1::2] << 16), np.uint32)


class _Cursor:
    """Reads the head of a file value by value."""

    _SCALARS = ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d")
    STRING, ARRAY = 8, 9

    def __init__(self, data: Any) -> None:
        self.data, self.at = memoryview(data), 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.number("<Q")
        text = bytes(self.data[self.at : self.at + length]).decode("utf-8", "replace")
        self.at += length
        return text

    def value(self, kind: int) -> Any:
        """A value of the metadata; arrays are skipped (they are the tokenizer's), None stands for them."""
        if kind == self.STRING:
            return self.string()
        if kind != self.ARRAY:
            return self.number(self._form(kind))
        of, count = self.number("<I"), self.number("<Q")
        if of == self.STRING:
            unpack, data, at = struct.Struct("<Q").unpack_from, self.data, self.at
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
            self.at = at
        elif of == self.ARRAY:
            for _ in range(count):
                self.value(of)
        else:
            self.at += count * struct.calcsize(self._form(of))
        return None

    def _form(self, kind: int) -> str:
        form = self._SCALARS[kind] if kind < len(self._SCALARS) else None
        if form is None:
            raise GGUFError(f"the metadata has a value of unknown type {kind}")
        return form


def read(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Metadata (without arrays) and tensors of a file; the tensors are mapped, not read.

    Raises:
        GGUFError: if it is no GGUF file, of another version, big-endian, or cut short.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    data = np.memmap(path, dtype=np.uint8, mode="c") if path.stat().st_size else np.empty(0, np.uint8)
    cursor = _Cursor(data)
    if bytes(data[:4]) != b"GGUF":
        raise GGUFError(f"{path} is no GGUF file: it does not begin with the letters GGUF")
    try:
        cursor.at = 4
        version = cursor.number("<I")
        if version not in (2, 3):
            raise GGUFError(f"{path} is GGUF of version {version} (or big-endian); versions 2 and 3 can be read")
        count, pairs = cursor.number("<Q"), cursor.number("<Q")
        metadata = {}
        for _ in range(pairs):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.number("<I"))
        entries = []
        for _ in range(count):
            name, rank = cursor.string(), cursor.number("<I")
            sizes = [cursor.number("<Q") for _ in range(rank)]
            entries.append((name, tuple(reversed(sizes)), cursor.number("<I"), cursor.number("<Q")))
    except struct.error as e:
        raise GGUFError(f"{path} is cut short: {e}") from e
    alignment = int(metadata.get("general.alignment") or 32)
    start = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, shape, code, offset in entries:
        kind = GGMLQuantizationType(code)
        per, size = GGML_QUANT_SIZES[kind]
        row = shape[-1] // per * size
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        raw = data[start + offset : start + offset + rows * row]
        if raw.size != rows * row or shape[-1] % per:
            raise GGUFError(f"{path} is cut short or damaged: tensor {name} of shape {list(shape)} ({kind.name})")
        tensors[name] = StoredTensor(name, kind.name, shape, raw.reshape(rows, row))
    return metadata, tensors


@contextmanager
def one_reading() -> Iterator[None]:
    """Within, transformers reads a file's metadata once, and makes an architecture's table of tensor names once.

    Either takes seconds: it reads anew for the configuration, for the tokenizer and for the weights, and makes the same
    table for every module of the model.
    """
    import gguf as package

    original, made, name_map = package.GGUFReader, dict[str, Any](), package.get_tensor_name_map

    def reader(path: Any, *rest: Any) -> Any:
        key = f"{path} {rest}"
        if key not in made:
            made[key] = original(path, *rest)
        return made[key]

    package.GGUFReader = reader  # type: ignore[assignment, misc]
    package.get_tensor_name_map = functools.cache(name_map)
    try:
        yield
    finally:
        package.GGUFReader = original  # type: ignore[misc]
        package.get_tensor_name_map = name_map


# ---------------------------------------------------------------------------------------------------- whole models


def supported(metadata: dict[str, Any]) -> bool:
    """Whether the file's architecture is one of those that ``fill`` knows."""
    return metadata.get("general.architecture") in ARCHITECTURES


def fill(
    model: nn.Module, metadata: dict[str, Any], tensors: dict[str, StoredTensor], dtype: torch.dtype, request: Request
) -> None:
    """Gives a model made on the meta device its weights; linear layers and tied embeddings become quantised ones.

    Args:
        dtype: of what stays in floating point, and of the activations.
        request: ``gguf``: every layer as the file has it; ``int4``, ``int8``: layers that are not of that kind are
            quantised to it (in a file of 4-bit weights, ``int4`` leaves finer ones at 8 bits).

    Raises:
        GGUFError: where model and file do not fit together.
    """
    names = _names(model, metadata, tensors)
    coarse = any(t.kind in ("Q4_0", "Q4_1") for t in tensors.values())
    changed: dict[str, list[str]] = {}
    holders_of: dict[int, list[tuple[nn.Module, str, Any]]] = {}
    for parent, key, _, layer in layers(model):
        holders_of.setdefault(id(layer.weight), []).append((parent, key, layer))
    for name, parameter in list(model.named_parameters()):
        stored = tensors[names[name]]
        if stored.shape != tuple(parameter.shape):
            raise GGUFError(
                f"{stored.name} has shape {list(stored.shape)}, the model needs {list(parameter.shape)} for {name}"
            )
        order = _row_order(model, metadata, stored.name, parameter.shape[0])
        holders = holders_of.get(id(parameter), [])
        multiplied = any(isinstance(layer, nn.Linear) for _, _, layer in holders)
        kind = _wanted(stored, request, coarse, multiplied) if holders else None
        if kind == "stored":
            weight = stored.quantised()
            weight = weight if order is None else weight.reordered(order)
        else:
            numbers = stored.numbers()
            numbers = numbers if order is None else numbers[order]
            if kind is not None and unfit(numbers, kind):
                log.warning("not quantised to %s: %s (%s)", kind, name, unfit(numbers, kind))
                kind = None
            if holders and stored.kind not in ("F32", "F16", "BF16"):
                changed.setdefault(f"{stored.kind} to {kind or dtype}", []).append(name)
            if kind is None:
                _replace(model, parameter, nn.Parameter(numbers.to(dtype), requires_grad=False))
                continue
            weight = QuantisedWeight.from_float(numbers, kind)
        for parent, key, layer in holders:
            setattr(parent, key, replacement(layer, weight))
    for change, which in changed.items():
        log.info(
            "converted from %s, as the request %r does not take them as they are: %s", change, request, ", ".join(which)
        )
    _compute_buffers(model)


def _names(model: nn.Module, metadata: dict[str, Any], tensors: dict[str, StoredTensor]) -> dict[str, str]:
    """The file's name of every parameter; raises where one has none, or where the file has more."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    architecture = str(metadata["general.architecture"])
    arch = next(key for key, value in MODEL_ARCH_NAMES.items() if value == architecture)
    mapping = get_tensor_name_map(arch, int(metadata[f"{architecture}.block_count"]))
    names = {}
    for name, _ in model.named_parameters():
        base, _, suffix = name.rpartition(".")
        found = mapping.get_name(base)
        if found is None or f"{found}.{suffix}" not in tensors:
            raise GGUFError(f"the file has no tensor for {name}")
        names[name] = f"{found}.{suffix}"
    unused = tensors.keys() - set(names.values()) - _IGNORED
    if unused:
        raise GGUFError(f"the model has no place for {', '.join(sorted(unused)[:4])} ({len(unused)} tensors)")
    return names


def _row_order(model: Any, metadata: dict[str, Any], name: str, rows: int) -> Tensor | None:
    """Which row of the file is each row of the model: query and key halves lie interleaved in the file."""
    if metadata["general.architecture"] not in _PERMUTED:
        return None
    if ".attn_q." in name:
        heads = model.config.num_attention_heads
    elif ".attn_k." in name:
        heads = model.config.num_key_value_heads
    else:
        return None
    return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)


def _wanted(stored: StoredTensor, request: Request, coarse: bool, multiplied: bool) -> Kind | Literal["stored"] | None:
    """What becomes of a weight: kept as stored, quantised to a kind, or None: floating point.

    An embedding that is not also multiplied with is small traffic: it is kept as stored or in floating point.
    """
    if request == "gguf":
        return "stored" if stored.kind in _BLOCKS else None
    if stored.kind == "Q8_0" and (request == "int8" or coarse):
        return "stored"
    if stored.kind in ("Q4_0", "Q4_1") and request == "int4":
        return "stored"
    if not multiplied:
        return None
    fine = stored.kind in ("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_1", "Q8_K")
    return "int8" if request == "int8" or (coarse and fine) else "int4"


def _replace(model: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Puts a parameter wherever the old one stands."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is old:
                module._parameters[name] = new


def _compute_buffers(model: Any) -> None:
    """Buffers that no file holds (frequencies of rotary embeddings) are computed by the model's own initialisation."""
    for module in model.modules():
        empty = [name for name, t in module._buffers.items() if t is not None and t.is_meta]
        for name in empty:
            module._buffers[name] = torch.full_like(module._buffers[name], float("nan"), device="cpu")
        if empty:
            model._init_weights(module)
        for name in empty:
            if module._buffers[name].isnan().any():
                raise GGUFError(f"the model does not initialise its buffer {type(module).__name__}.{name}")
    missing = [name for name, t in model.named_parameters() if t.is_meta]
    if missing:
        raise GGUFError(f"no weights for {', '.join(missing)}")
