"""The instrument on itself: what is put in on purpose must come out, by all methods; and the command that a user sees.

Other work on the machine widens a measurement's interval, and at worst shifts it. So a claim is about a ratio that should
be 1, with its interval: confirmed where the interval is narrow and meets the tolerated range, refuted where it is narrow and
misses it, undecided where it is wide. It is tried a few times and holds if it was confirmed once: an instrument wrong
by more than the tolerance is refuted in each try. Where nothing but wide intervals came out the machine was too busy to
tell, which is a reason to skip.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench_files import command
from child import compiled

from torch_webgpu.bench.loop import METHODS
from torch_webgpu.bench.names import EAGER, HOST, ONE_PASS, PHASE_ORDER, PHASES, PLAN, SEQUENTIAL
from torch_webgpu.bench.schema import read
from torch_webgpu.bench.session import result_path
from torch_webgpu.bench.stats import Interval, Line, fit_line, summarise

pytestmark = pytest.mark.once

TESTS = Path(__file__).parent
Samples = dict[str, list[float]]


def tries(experiment: str, implementation: str, *arguments: str, count: int = 5) -> Iterator[Samples]:
    """Independent tries of an experiment of measuring.py, in one process, measured as they are asked for."""
    environment = {**os.environ, "TORCH_WEBGPU_IMPL": implementation.partition("-")[0]}
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "measuring.py"), experiment, implementation, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout and process.stderr
    try:
        for _ in range(count):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield json.loads(line)
            process.stdin.write("\n")
            process.stdin.flush()
    finally:
        process.kill()
        process.communicate()


def one_confirms(found: Iterator[Samples], judge: Callable[[Samples], dict[str, Interval]], tolerance: float) -> None:
    """Every ratio of ``judge`` is 1 within ``tolerance`` or its own interval in one of the tries; see the module."""
    seen: dict[str, list[Interval]] = {}
    confirmed: set[str] = set()
    refuted: set[str] = set()
    right = Interval(1 - tolerance, 1 + tolerance)
    for samples in found:
        for name, ratio in judge(samples).items():
            seen.setdefault(name, []).append(ratio)
            if ratio.high - ratio.low < 4 * tolerance:
                (confirmed if ratio.overlaps(right) else refuted).add(name)
        if confirmed == set(seen):
            return
    missing = {name: [f"{r.low:.3f} to {r.high:.3f}" for r in seen[name]] for name in seen if name not in confirmed}
    if refuted & set(missing):
        pytest.fail(f"not 1 within {tolerance:.0%} in any try: {missing}")
    pytest.skip(f"the machine is too busy to measure on: the 95 % intervals of all tries are too wide: {missing}")


def ratio(found: Interval, wanted: Interval) -> Interval:
    """From its worst corner to its best."""
    return Interval(found.low / wanted.high, found.high / max(wanted.low, 1e-9))


def less(a: Interval, b: Interval) -> Interval:
    """The difference, likewise."""
    return Interval(a.low - b.high, a.high - b.low)


def median(samples: Samples, name: str) -> Interval:
    return summarise(samples[name]).median_ci


def line(samples: Samples, name: str) -> Line:
    """The line through ``name`` with the n that its star stands for."""
    pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)"))
    return fit_line({int(m[1]): values for key, values in samples.items() if (m := pattern.fullmatch(key))})


def test_a_delay_that_was_put_in_is_found() -> None:
    """50 µs in each dispatch: the slope of every method grows by that, within 5 %."""

    def judge(samples: Samples) -> dict[str, Interval]:
        grown = {m: less(line(samples, f"{m}|50|*").slope_ci, line(samples, f"{m}|0|*").slope_ci) for m in METHODS}
        return {method: ratio(us, Interval(50, 50)) for method, us in grown.items()}

    one_confirms(tries("delay", "dawn-null"), judge, 0.05)


@pytest.mark.parametrize("implementation", ["wgpu", "dawn"])
def test_a_kernel_of_known_duration(implementation: str) -> None:
    """What a tenth of one long dispatch takes is the slope over n short ones, by the clock and by the GPU's timestamps."""

    def judge(samples: Samples) -> dict[str, Interval]:
        found = {}
        for metric in ("wall", "gpu"):
            whole = less(median(samples, f"20000|1|{metric}"), median(samples, f"0|1|{metric}"))
            slope = less(line(samples, f"2000|*|{metric}").slope_ci, line(samples, f"0|*|{metric}").slope_ci)
            found[metric] = ratio(slope, Interval(whole.low / 10, whole.high / 10))
        slopes = (line(samples, f"2000|*|{metric}").slope_ci for metric in ("gpu", "wall"))
        return {**found, "timestamps by the clock": ratio(*slopes)}

    one_confirms(tries("duration", implementation, count=12), judge, 0.1)


def test_loops_cost_what_the_library_costs(tmp_path: Path) -> None:
    """Against a loop written apart from the instrument, and phases against the whole, within 10 %."""
    library = compiled(tmp_path, "direct_loop", "the loop that the instrument is compared with")

    def judge(samples: Samples) -> dict[str, Interval]:
        beside = {method: median(samples, f"{method}|direct") for method in (SEQUENTIAL, ONE_PASS)}
        found = {method: ratio(median(samples, method), direct) for method, direct in beside.items()}
        return {**found, "sum of the phases": ratio(median(samples, "phases"), median(samples, SEQUENTIAL))}

    one_confirms(tries("direct", "dawn-null", library), judge, 0.1)


def test_repeated_runs_agree() -> None:
    """The 95 % intervals of two runs' slopes overlap; a narrow one misses the other by chance in 1 of 100 tries."""

    def judge(samples: Samples) -> dict[str, Interval]:
        runs = {m: [line(samples, f"{m}|{run}|*").slope_ci for run in (0, 1)] for m in (SEQUENTIAL, ONE_PASS)}
        return {method: ratio(second, first) for method, (first, second) in runs.items()}

    one_confirms(tries("repeated", "dawn-null"), judge, 0.05)


#: Instructions of one more dispatch on the null driver, about twice what they were when this was written. They depend on
#: nothing but the program, and say when one more layer has come between a tensor op and the library.
MOST_INSTRUCTIONS = {SEQUENTIAL: 20_000, ONE_PASS: 6_000, EAGER: 30_000}


def test_instructions_of_a_dispatch(tmp_path: Path) -> None:
    """Counted, not timed: the difference of 600 and 100 dispatches, so that nothing else is in it."""
    if not shutil.which("valgrind") or not any(
        Path(d, "valgrind/callgrind.h").exists() for d in ("/usr/include", "/usr/local/include")
    ):
        pytest.skip("valgrind counts the instructions and is not installed; apt-get install valgrind")
    library = compiled(tmp_path, "callgrind", "the counting of instructions")
    out = tmp_path / "counts"
    subprocess.run(
        [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"),
            *(sys.executable, str(TESTS / "measuring.py"), "instructions", "dawn-null", library),
        ],
        env={**os.environ, "TORCH_WEBGPU_IMPL": "dawn"},
        stdin=subprocess.DEVNULL,
        check=True,
        capture_output=True,
        timeout=280,
    )
    totals = []
    for number in range(1, 2 * len(MOST_INSTRUCTIONS) + 1):
        text = (tmp_path / f"counts.{number}").read_text()
        totals.append(int(re.findall(r"^totals: (\d+)", text, re.MULTILINE)[-1]))
    each = {name: (totals[2 * i + 1] - totals[2 * i]) / 500 for i, name in enumerate(MOST_INSTRUCTIONS)}
    assert all(100 < each[name] < most for name, most in MOST_INSTRUCTIONS.items()), each


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(tmp_path: Path) -> None:
    arguments = ("dispatch", "--quick", "--implementation", "dawn-null", "--out", str(tmp_path))
    path = tmp_path / "dispatch.json"
    running = command(*arguments)
    deadline = time.monotonic() + 120
    while not path.exists() or len(read(path).measurements) < 10:
        assert running.poll() is None and time.monotonic() < deadline, running.communicate()
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    kept = read(path)
    assert running.returncode == 130 and not kept.complete, errors
    assert f"{len(kept.measurements)} measurements are kept in {path}" in errors

    again = command(*arguments, "--json")
    output, errors = again.communicate(timeout=200)
    assert again.returncode == 0, errors
    run = read(path)
    assert run.complete and run.run == kept.run and run.measurements[: len(kept.measurements)] == kept.measurements
    rows = json.loads(output)["rows"]
    found = {(row["method"], row["metric"]): row for row in rows if not row["parameters"]}
    methods = {*METHODS, EAGER, PLAN}
    assert methods <= {method for method, _ in found}
    assert all(found[method, HOST]["line"] and found[method, HOST]["unit"] == "us" for method in methods)
    assert {metric for method, metric in found if method == PHASES} == set(PHASE_ORDER)
    assert {key for row in rows for key in row["parameters"]} >= {"bindings", "workgroups", "pipelines", "uniform"}
    assert not run.notes and [target.implementation for target in run.targets] == ["dawn-null"]
    asked = ["torch-webgpu", "bench", *arguments[:2], "--implementation=dawn-null"]
    assert result_path(tmp_path, "dispatch", asked) == tmp_path / "dispatch-2.json"  # a complete run is left alone


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ImportError('No module named pydawn')", "pip install 'dawn-python"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
    ],
)
def test_what_cannot_be_measured_is_told(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pydawn.py").write_text(source)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    running = command("dispatch", "--quick", "--implementation", "dawn", "--out", str(tmp_path / "out"), PYTHONPATH=path)
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 1 and message in output, errors
    assert message in read(tmp_path / "out" / "dispatch.json").notes[0]


def test_without_the_extra(tmp_path: Path) -> None:
    (tmp_path / "scipy.py").write_text("raise ModuleNotFoundError('No module named scipy', name='scipy')")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    running = command("dispatch", "--quick", "--out", str(tmp_path / "out"), PYTHONPATH=path)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 2 and errors.count("\n") == 1 and "pip install 'torch-webgpu[bench]'" in errors
