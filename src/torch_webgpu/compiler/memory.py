"""Liveness memory planning: temporaries share arenas, at offsets that are multiples of 256 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ALIGNMENT = 256  # minStorageBufferOffsetAlignment of the specification


@dataclass(frozen=True)
class Lifetime:
    """One temporary.

    Attributes:
        buffer: its name.
        size: bytes.
        first, last: the steps that write it first and touch it last, inclusive.
    """

    buffer: Any
    size: int
    first: int
    last: int


@dataclass
class _Arena:
    size: int = 0
    placed: list[tuple[Lifetime, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Placement:
    """Where each temporary lies.

    Attributes:
        arenas: bytes of each.
        offsets: buffer name → (arena, byte offset).
    """

    arenas: tuple[int, ...]
    offsets: dict[Any, tuple[int, int]]


def plan(lifetimes: Sequence[Lifetime], apart: set[frozenset[Any]], limit: int) -> Placement:
    """Places temporaries so that no two that live at once overlap.

    Args:
        apart: pairs of buffers that one launch binds, at least one of them to write: WebGPU refuses a buffer that a dispatch
            binds both for reading and for writing, so they go to different arenas.
        limit: bytes that an arena may have; a larger temporary gets an arena of its own.
    """
    arenas: list[_Arena] = []
    offsets: dict[Any, tuple[int, int]] = {}
    for life in sorted(lifetimes, key=lambda t: (t.first, -t.size)):
        size = -(-life.size // ALIGNMENT) * ALIGNMENT
        for index, arena in enumerate(arenas):  # noqa: B007  # which one it was is used below
            if any(frozenset((life.buffer, other.buffer)) in apart for other, _ in arena.placed):
                continue
            at = _gap(arena, life, size)
            if max(arena.size, at + size) <= max(limit, arena.size):
                break
        else:
            index, at = len(arenas), 0
            arenas.append(_Arena())
        arena = arenas[index]
        arena.size = max(arena.size, at + size)
        arena.placed.append((life, at))
        offsets[life.buffer] = (index, at)
    return Placement(tuple(a.size for a in arenas), offsets)


def _gap(arena: _Arena, life: Lifetime, size: int) -> int:
    """The lowest offset where ``size`` bytes are free during the whole lifetime."""
    taken = sorted(
        (at, at + -(-other.size // ALIGNMENT) * ALIGNMENT)
        for other, at in arena.placed
        if other.first <= life.last and life.first <= other.last
    )
    at = 0
    for start, end in taken:
        if at + size <= start:
            break
        at = max(at, end)
    return at


def peak(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes that are alive at once, at most."""
    change: dict[int, int] = {}
    for life in lifetimes:
        change[life.first] = change.get(life.first, 0) + life.size
        change[life.last + 1] = change.get(life.last + 1, 0) - life.size
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most
