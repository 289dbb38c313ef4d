"""The instrument's statistics against known truths, and its result files against damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torch_webgpu.bench.recorder import Recorder
from torch_webgpu.bench.schema import Measurement, Quantity, ResultError, Target, digest, read
from torch_webgpu.bench.stats import compare, fit_line, summarise

pytestmark = pytest.mark.once

TARGET = Target(kind="webgpu", implementation="wgpu", adapter="some GPU", adapter_kind="discrete", clocks={"graphics": 1980})


def noisy(value: float, count: int, seed: int, spread: float = 0.05) -> list[float]:
    return list(value * (1 + spread * np.random.default_rng(seed).standard_normal(count)))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    found = [summarise(noisy(100, 30, seed)) for seed in range(200)]
    assert 0.9 < np.mean([100 in s.mean_ci for s in found]) <= 0.99
    assert 0.87 < np.mean([100 in s.median_ci for s in found]) <= 1
    lines = [fit_line({n: noisy(100 + 2.5 * n, 30, 7 * seed + n) for n in (1, 10, 100, 1000)}) for seed in range(60)]
    assert np.mean([2.5 in line.slope_ci for line in lines]) > 0.85
    assert np.mean([100 in line.intercept_ci for line in lines]) > 0.85


def test_summary_of_plain_numbers() -> None:
    s = summarise([1, 2, 3, 4, 100])
    assert (s.n, s.mean, s.median, s.minimum, s.maximum, s.outliers) == (5, 22, 3, 1, 100, 1)
    assert s.std == pytest.approx(43.617656975) and s.cv == pytest.approx(1.98262077)
    assert (s.mean_ci.low, s.mean_ci.high) == (pytest.approx(-32.158, abs=1e-3), pytest.approx(76.158, abs=1e-3))
    one = summarise([3.0])
    assert one.mean_ci.low == one.mean_ci.high == one.median_ci.low == 3 and one.std == 0
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


def test_a_tick_is_an_intercept() -> None:
    """A wait of 104 ms, whatever is dispatched: the quotient says 1 ms a dispatch, the slope what it costs."""
    line = fit_line({n: noisy(104_000 + 5 * n, 20, n, 1e-5) for n in (1, 100, 1000, 5000)})
    assert line.slope == pytest.approx(5, rel=0.02) and line.intercept == pytest.approx(104_000, rel=1e-3)
    assert all(abs(r) < 5 for r in line.residuals.values()) and line.r2 > 0.999
    with pytest.raises(ValueError, match="three different n"):
        fit_line({1: [1.0], 2: [2.0]})


def test_comparison() -> None:
    c = compare(noisy(150, 40, 1), noisy(100, 40, 2))
    assert 1.5 in c.ratio_ci and c.p < 1e-10 and c.d > 3
    same = compare(noisy(100, 40, 3), noisy(100, 40, 4))
    assert 1 in same.ratio_ci and same.p > 0.01 and abs(same.d) < 0.6
    cold = compare([*noisy(50, 29, 5), 5000.0], noisy(60, 30, 6))  # one cold start reverses the means
    assert cold.ratio > 1 > cold.median_ratio
    with pytest.raises(ValueError, match="mean of 0"):
        compare([1.0], [0.0])


def passes(n: int, samples: list[float], warmup: list[float] | None = None) -> Measurement:
    quantity = Quantity(
        experiment="dispatch", workload="empty", method="one pass", target=0, parameters={"n": n}, metric="wall"
    )
    return Measurement(**quantity.model_dump(), unit="us", samples=samples, warmup=warmup or [])


def record(path: Path, command: tuple[str, ...] = ("bench", "dispatch")) -> Recorder:
    recorder = Recorder(path, command)
    assert recorder.target(TARGET) == 0
    first = passes(10, [1.5, 2.25], [9.0])
    if not recorder.has(first):
        recorder.add(first)
    return recorder


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "results" / "run.json"
    first = record(path)
    assert not read(path).complete
    second = record(path)
    assert second.run.run == first.run.run and second.target(TARGET.model_copy(update={"clocks": {}})) == 0
    second.add(passes(100, [3.0]))
    with pytest.raises(ValueError, match="measured already"):
        second.add(passes(100, [3.0]))
    with pytest.raises(FileExistsError, match="an interrupted run of bench dispatch"):
        record(path, ("bench", "llm"))
    second.finish()
    run = read(path)
    assert run.complete and [m.samples for m in run.measurements] == [[1.5, 2.25], [3.0]]
    assert run.target_of(run.measurements[0]).label == "wgpu on some GPU" and run.environment.versions["torch"]
    with pytest.raises(FileExistsError, match="a complete run"):
        record(path)


def _edited(content: dict[str, Any], text: str) -> str:
    content["measurements"][0]["samples"][0] = 0.5
    return json.dumps(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    (
        (_edited, "was changed after it was written"),
        (lambda content, text: text[: len(text) // 2], "was cut off"),
        (lambda content, text: text.replace("2.25", "NaN"), "NaN is no number"),
        (lambda content, text: json.dumps({**content, "schema_version": 99}), "schema version 99"),
        (lambda content, text: json.dumps({k: v for k, v in content.items() if k != "digest"}), "has no digest"),
        (lambda content, text: "[1, 2]", "is no result"),
        (lambda content, text: "\0\1", "is no JSON"),
    ),
)
def test_damaged_files_are_refused_with_the_reason(damage: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    record(path).finish()
    text = path.read_text()
    path.write_text(damage(json.loads(text), text))
    with pytest.raises(ResultError, match=message):
        read(path)
    with pytest.raises(ResultError, match="cannot be read"):
        read(tmp_path / "missing.json")


def test_what_no_run_may_hold(tmp_path: Path) -> None:
    record(tmp_path / "run.json")
    bad: tuple[list[float], ...] = ([], [float("nan")], [float("inf")])
    for samples in bad:
        with pytest.raises(ValueError, match="samples"):
            passes(10, samples)
    content = json.loads((tmp_path / "run.json").read_text())
    content["measurements"][0]["target"] = 4
    content["digest"] = digest(content)
    (tmp_path / "wrong.json").write_text(json.dumps(content))
    with pytest.raises(ResultError, match="about target 4, but there are 1"):
        read(tmp_path / "wrong.json")
