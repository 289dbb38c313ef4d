"""Statistics of samples, by SciPy: intervals of confidence, lines over the number of dispatches, comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
_RESAMPLES = 2000
_SEED = 20260401


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def overlaps(self, other: Interval) -> bool:
        """Whether the two have a value in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Summary:
    """Of one quantity's samples.

    Attributes:
        mean_ci: Student's t; the point itself where there is one sample.
        median_ci: percentile bootstrap.
        cv: standard deviation / mean; NaN for a mean of 0.
        outliers: samples beyond 1.5 interquartile ranges (Tukey); they are part of everything else here.
    """

    n: int
    mean: float
    mean_ci: Interval
    median: float
    median_ci: Interval
    std: float
    cv: float
    minimum: float
    maximum: float
    outliers: int


def summarise(samples: Sequence[float]) -> Summary:
    """Summary of at least one sample; ValueError for none."""
    x = np.asarray(samples, dtype=float)
    if x.size == 0:
        raise ValueError("there are no samples to summarise")
    mean, median = float(x.mean()), float(np.median(x))
    std = float(x.std(ddof=1)) if x.size > 1 else 0.0
    half = float(stats.t.ppf((1 + LEVEL) / 2, x.size - 1)) * std / math.sqrt(x.size) if x.size > 1 else 0.0
    first, third = np.percentile(x, [25, 75])
    reach = 1.5 * (third - first)
    outliers = int(((x < first - reach) | (x > third + reach)).sum())
    cv = std / mean if mean else math.nan
    return Summary(
        int(x.size),
        mean,
        Interval(mean - half, mean + half),
        median,
        _median_interval(x),
        std,
        cv,
        float(x.min()),
        float(x.max()),
        outliers,
    )


def _median_interval(x: np.ndarray) -> Interval:
    medians = np.median(_resampled(x, np.random.default_rng(_SEED)), axis=1)
    low, high = np.percentile(medians, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(float(low), float(high))


def _resampled(x: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return x[generator.integers(0, x.size, (_RESAMPLES, x.size))]


@dataclass(frozen=True)
class Line:
    """``time = intercept + slope * n``: the slope is what one dispatch costs, the intercept what a wait costs.

    Attributes:
        residuals: of each n, the median minus the line, in the samples' unit.
        r2: part of the medians' variance that the line explains.
    """

    slope: float
    slope_ci: Interval
    intercept: float
    intercept_ci: Interval
    residuals: dict[int, float]
    r2: float


def fit_line(samples: Mapping[int, Sequence[float]]) -> Line:
    """The line through the medians of each n, each weighted by 1 / its median, since errors grow with the time itself.

    A median of 0 is one that a coarse clock could not see: it weighs as much as the smallest that it saw.
    Intervals come from resampling within each n, so they assume nothing about the distribution.

    Raises:
        ValueError: for fewer than three different n.
    """
    if len(samples) < 3:
        raise ValueError(f"a line needs at least three different n, got {sorted(samples)}")
    counts = np.array(sorted(samples), dtype=float)
    groups = [np.asarray(samples[int(n)], dtype=float) for n in counts]
    medians = np.array([np.median(g) for g in groups])
    seen = medians[medians > 0]
    weights = 1 / np.maximum(medians, seen.min() if seen.size else 1.0)
    slope, intercept = _weighted(counts, medians[None, :], weights)
    generator = np.random.default_rng(_SEED)
    drawn = np.stack([np.median(_resampled(g, generator), axis=1) for g in groups], axis=1)
    slopes, intercepts = _weighted(counts, drawn, weights)
    found = medians - (intercept[0] + slope[0] * counts)
    spread = float(((medians - medians.mean()) ** 2).sum())
    tails = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    return Line(
        float(slope[0]),
        Interval(*map(float, np.percentile(slopes, tails))),
        float(intercept[0]),
        Interval(*map(float, np.percentile(intercepts, tails))),
        {int(n): float(r) for n, r in zip(counts, found, strict=True)},
        1 - float((found**2).sum()) / spread if spread else 1.0,
    )


def _weighted(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted least squares of each row of y [R, N]: slopes [R], intercepts [R]."""
    w2 = w**2 / (w**2).sum()
    mx, my = (w2 * x).sum(), (y * w2).sum(axis=1)
    slopes = ((y - my[:, None]) * w2 * (x - mx)).sum(axis=1) / (w2 * (x - mx) ** 2).sum()
    return slopes, my - slopes * mx


@dataclass(frozen=True)
class Comparison:
    """Of b against a.

    Attributes:
        ratio: mean of a / mean of b: above 1 where b takes less.
        ratio_ci: bootstrap.
        p: of Welch's t-test that the means are equal; NaN where either has fewer than two samples or nothing varies.
        d: Cohen's d with the pooled standard deviation; NaN where nothing varies.
        median_ratio: of the medians; where it points the other way than ``ratio``, outliers decide.
    """

    ratio: float
    ratio_ci: Interval
    median_ratio: float
    p: float
    d: float


def compared(a: Sequence[float], b: Sequence[float]) -> Comparison | None:
    """As ``compare``; None where b's mean or median is 0, as a coarse clock may make it."""
    return compare(a, b) if np.mean(b) and np.median(b) else None


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison:
    """Compares two groups of samples; ValueError where one is empty or b's mean is 0."""
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if not x.size or not y.size:
        raise ValueError("there are no samples to compare")
    if y.mean() == 0 or np.median(y) == 0:
        raise ValueError("there is no ratio to a mean of 0")
    generator = np.random.default_rng(_SEED)
    ratios = _resampled(x, generator).mean(axis=1) / _resampled(y, generator).mean(axis=1)
    low, high = np.percentile(ratios, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    p = d = math.nan
    if x.size > 1 and y.size > 1:
        pooled = ((x.size - 1) * x.var(ddof=1) + (y.size - 1) * y.var(ddof=1)) / (x.size + y.size - 2)
        if pooled > 0:
            p = float(stats.ttest_ind(x, y, equal_var=False).pvalue)
            d = float((x.mean() - y.mean()) / math.sqrt(pooled))
    median_ratio = float(np.median(x) / np.median(y))
    return Comparison(float(x.mean() / y.mean()), Interval(float(low), float(high)), median_ratio, p, d)
