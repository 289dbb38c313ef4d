"""When a quantity has been sampled enough: a full number of samples where they are cheap, fewer where they are dear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_EVERY = 5  # samples between two looks at the interval


@dataclass(frozen=True)
class Budget:
    """How many samples are taken of a quantity.

    Attributes:
        warmup: samples before those that count.
        most: samples where nothing stops it.
        least: samples before anything may.
        seconds: of all its samples, warm-up included, after which it stops.
        precision: it stops too where the 95 % interval of the median is within this part of it, on either side.
    """

    warmup: int
    most: int
    least: int = 10
    seconds: float = float("inf")
    precision: float = 0.0

    def enough(self, samples: Sequence[float], spent: float) -> str | None:
        """Why no more are needed, to be noted with the result; empty at the full number, None where more are."""
        count = len(samples)
        if count >= self.most:
            return ""
        if count < min(self.least, self.most):
            return None
        if spent > self.seconds:
            return f"{count} of {self.most} samples: they took {spent:.2g} s, and {self.seconds:g} s were allowed"
        if self.precision and count % _EVERY == 0:
            from .stats import summarise  # SciPy, which most processes do without

            s = summarise(samples)
            if max(s.median_ci.high - s.median, s.median - s.median_ci.low) <= self.precision * abs(s.median):
                part = f"{100 * self.precision:g} %"
                return f"{count} of {self.most} samples: the interval of the median is within {part} of it"
        return None
