"""Storages in safetensors files of bounded size, one shard in memory at a time."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ExportError
from .bundle import Segment

LIMIT = 128 << 20  # bytes of a file
_HEADER = 64 << 10  # room for it,
_MOST = 256  # and tensors that it has room for
_CODES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Region:
    """A tensor with its name, in a storage of which ``at`` is its place in bytes."""

    name: str
    tensor: torch.Tensor
    at: int


def regions(named: Sequence[tuple[str, torch.Tensor]]) -> list[Region]:
    """The tensors of one storage as regions that do not overlap and begin and end at whole words.

    Tensors with gaps, in words that others share, or that overlap others, are stored together as the bytes of the storage.
    """
    found: list[Region] = []
    for name, t in sorted(named, key=lambda item: (item[1].storage_offset(), -item[1].nbytes, item[0])):
        at = int(t.storage_offset()) * t.itemsize
        if any(r.at == at and r.tensor.shape == t.shape and r.tensor.dtype == t.dtype for r in found):
            continue  # one tensor under two names
        found.append(Region(name, t.detach(), at))
    ends = [0, *(r.at + r.tensor.nbytes for r in found)]
    plain = all(r.tensor.is_contiguous() and r.at % 4 == 0 and r.tensor.nbytes % 4 == 0 for r in found)
    if plain and all(r.at >= end for r, end in zip(found, ends, strict=False)):
        return found
    first = found[0].tensor
    size = max(
        r.at + r.tensor.itemsize * (1 + sum((n - 1) * s for n, s in zip(r.tensor.shape, r.tensor.stride(), strict=True)))
        for r in found
    )
    count = -(-size // first.itemsize)
    whole = torch.as_strided(first, (count,), (1,), 0)
    return [Region(" + ".join(r.name for r in found[:3]), whole, 0)]


class Shards:
    """Writes tensors to ``weights-00001.safetensors`` and so on as they come."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        """
        Args:
            limit: bytes that a file may have, at least 128 KiB and at most 128 MiB.
        """
        if not 2 * _HEADER <= limit <= LIMIT:
            raise ExportError(f"shards of {limit} bytes: between {2 * _HEADER} and {LIMIT} are possible")
        self._folder, self._limit = folder, limit - _HEADER
        self._held: list[tuple[str, str, list[int], bytes]] = []
        self._size = 0
        self._names: set[str] = set()
        self.files: list[str] = []
        self._pending: list[tuple[list[Segment], int, int]] = []

    def add(self, region: Region) -> list[Segment]:
        """Where the tensor's bytes lie; the list is complete after ``close``."""
        segments: list[Segment] = []
        pieces = list(_pieces(region.tensor, self._limit))
        at = region.at
        for i, piece in enumerate(pieces):
            name = region.name if len(pieces) == 1 else f"{region.name}.part{i + 1}of{len(pieces)}"
            data = bytes(piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
            self._put(name, piece, data + bytes(-len(data) % 4 if piece.dim() == 1 else 0), at, segments)
            at += len(data)
        return segments

    def _put(self, name: str, piece: torch.Tensor, data: bytes, at: int, segments: list[Segment]) -> None:
        if self._held and (self._size + len(data) > self._limit or len(self._held) == _MOST):
            self._flush()
        if name in self._names:
            raise ExportError(f"two tensors are called {name}")
        self._names.add(name)
        shape = [len(data) // piece.itemsize] if piece.dim() == 1 else list(piece.shape)
        self._held.append((name, _CODES[piece.dtype], shape, data))
        self._pending.append((segments, self._size, at))
        self._size += len(data)

    def _flush(self) -> None:
        if not self._held:
            return
        header: dict[str, object] = {}
        at = 0
        for name, code, shape, data in self._held:
            header[name] = {"dtype": code, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 256)
        if len(text) + 8 > _HEADER:
            raise ExportError(f"{len(self._held)} tensors are too many for one file; export with larger shards")
        file = f"weights-{len(self.files) + 1:05}.safetensors"
        with (self._folder / file).open("wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for *_, data in self._held:
                f.write(data)
        for (segments, offset, place), (*_, data) in zip(self._pending, self._held, strict=True):
            segments.append(Segment(file=file, offset=8 + len(text) + offset, size=len(data), at=place))
        self.files.append(file)
        self._held, self._pending, self._size = [], [], 0

    def close(self) -> None:
        """Writes what is left."""
        self._flush()


def _pieces(t: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """The tensor, or parts of it that fit a file: rows, or elements where a row is too large. Whole words each."""
    if t.nbytes <= limit:
        yield t
        return
    row = t.nbytes // t.shape[0]
    if row > limit or row % 4:
        t, row = t.reshape(-1), t.itemsize
    step = limit // row // 4 * 4 or limit // row
    for start in range(0, t.shape[0], step):
        yield t[start : start + step]
