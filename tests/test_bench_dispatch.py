"""The instrument on itself: what is put in on purpose must come out, by all methods; and the command that a user sees.

A busy machine can spoil any one measurement, so a claim holds if one of a few independent tries confirms it: an instrument
that is wrong by more than the tolerance fails all of them, and idle machines are right at the first.
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

from torch_webgpu.bench.loop import METHODS, PHASES
from torch_webgpu.bench.schema import read
from torch_webgpu.bench.session import result_path
from torch_webgpu.bench.stats import Line, fit_line, summarise

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


def one_confirms(found: Iterator[Samples], judge: Callable[[Samples], dict[str, bool]]) -> None:
    """Every claim that ``judge`` judges has to be confirmed in one of the tries."""
    refuted: set[str] = set()
    confirmed: set[str] = set()
    seen = []
    for samples in found:
        verdict = judge(samples)
        seen.append({name: [round(summarise(s).median, 4) for s in (samples[name],)] for name in list(samples)[:8]})
        confirmed |= {name for name, right in verdict.items() if right}
        refuted = set(verdict) - confirmed
        if not refuted:
            return
    pytest.fail(f"never confirmed: {sorted(refuted)}; medians of the tries: {seen}")


def line(samples: Samples, name: str) -> Line:
    """The line through ``name`` with the n that its star stands for."""
    pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)"))
    return fit_line({int(m[1]): values for key, values in samples.items() if (m := pattern.fullmatch(key))})


def within(found: float, wanted: float, part: float) -> bool:
    return abs(found - wanted) <= part * abs(wanted)


def compiled(tmp_path: Path, name: str, needed_for: str) -> str:
    """The C source of the tests as a shared library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip(f"there is no C compiler (cc) for {needed_for}; apt-get install gcc")
    out = tmp_path / f"{name}.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(out), str(TESTS / f"{name}.c"), "-ldl"]
    subprocess.run(command, check=True, timeout=120)
    return str(out)


def test_a_delay_that_was_put_in_is_found() -> None:
    """50 µs in each dispatch: the slope of every method grows by that, within 5 %."""

    def judge(samples: Samples) -> dict[str, bool]:
        grown = {m: line(samples, f"{m}|50|*").slope - line(samples, f"{m}|0|*").slope for m in METHODS}
        return {method: within(us, 50, 0.05) for method, us in grown.items()}

    one_confirms(tries("delay", "dawn-null"), judge)


@pytest.mark.parametrize("implementation", ["wgpu", "dawn"])
def test_a_kernel_of_known_duration(implementation: str) -> None:
    """What a tenth of one long dispatch takes is the slope over n short ones, by the clock and by the GPU's timestamps."""

    def judge(samples: Samples) -> dict[str, bool]:
        right = {}
        for metric in ("wall", "gpu"):
            whole = summarise(samples[f"40000|1|{metric}"]).median - summarise(samples[f"0|1|{metric}"]).median
            slope = line(samples, f"4000|*|{metric}").slope - line(samples, f"0|*|{metric}").slope
            right[metric] = within(slope, whole / 10, 0.1)
        clocks = line(samples, "4000|*|wall").slope, line(samples, "4000|*|gpu").slope
        return {**right, "timestamps agree with the clock": within(clocks[1], clocks[0], 0.1)}

    one_confirms(tries("duration", implementation, count=8), judge)


def test_loops_cost_what_the_library_costs(tmp_path: Path) -> None:
    """Against a loop written apart from the instrument, and phases against the whole, within 10 %."""
    library = compiled(tmp_path, "direct_loop", "the loop that the instrument is compared with")

    def judge(samples: Samples) -> dict[str, bool]:
        median = {name: summarise(values).median for name, values in samples.items()}
        return {
            "sequential": within(median["sequential"], median["sequential|direct"], 0.1),
            "one pass": within(median["one pass"], median["one pass|direct"], 0.1),
            "sum of the phases": within(median["phases"], median["sequential"], 0.1),
        }

    one_confirms(tries("direct", "dawn-null", library), judge)


def test_repeated_runs_agree() -> None:
    """The 95 % intervals of two runs overlap: where only chance differs, a try fails in less than 1 of 100 cases."""

    def judge(samples: Samples) -> dict[str, bool]:
        right = {}
        for method in ("sequential", "one pass"):
            first, second = (line(samples, f"{method}|{run}|*") for run in (0, 1))
            narrow = max(run.slope_ci.high - run.slope_ci.low for run in (first, second)) < first.slope / 4
            right[method] = narrow and first.slope_ci.overlaps(second.slope_ci)
        return right

    one_confirms(tries("repeated", "dawn-null"), judge)


#: Instructions of one more dispatch on the null driver, about twice what they were when this was written. They depend on
#: nothing but the program, and say when one more layer has come between a tensor op and the library.
MOST_INSTRUCTIONS = {"sequential": 20_000, "one pass": 6_000, "torch eager op": 30_000}


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


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts ``torch-webgpu bench``, with SIGINT as at a terminal."""
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = 'torch-webgpu'\n"
        "from torch_webgpu.cli import app; app()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, "bench", *arguments],
        env={**os.environ, "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
    methods = {*METHODS, "torch eager op", "compiled plan"}
    assert methods <= {method for method, _ in found}
    assert all(found[method, "host"]["line"] and found[method, "host"]["unit"] == "us" for method in methods)
    assert {metric for method, metric in found if method == "phases"} == set(PHASES)
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
