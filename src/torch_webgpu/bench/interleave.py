"""Samples of several variants, taken in turn and in random order, so that what drifts meets all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SEED = 20260401


@dataclass
class Samples:
    """Values of one variant, in the order they were taken."""

    values: list[float] = field(default_factory=list)
    warmup: list[float] = field(default_factory=list)


def interleaved(
    variants: Mapping[str, Callable[[], float]],
    warmup: int,
    runs: int,
    seed: int = SEED,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Samples]:
    """Calls every variant once a round, in another order each round.

    Args:
        variants: each returns one sample.
        warmup: rounds before those that count.
        runs: rounds that count.
        progress: called after each sample.
    """
    order, found = list(variants), {name: Samples() for name in variants}
    draw = random.Random(seed)
    for index in range(warmup + runs):
        draw.shuffle(order)
        for name in order:
            sample = variants[name]()
            (found[name].values if index >= warmup else found[name].warmup).append(sample)
            progress()
    return found
