"""The decomposition: its parts in the core, and the command that a user sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_files import command

from torch_webgpu import _C, runtime
from torch_webgpu.bench import names
from torch_webgpu.bench.overhead import OPS, Op, measure_place, measure_torch, one_submit, staged
from torch_webgpu.bench.places import wait
from torch_webgpu.bench.report.stacks import stacks
from torch_webgpu.bench.results import Results
from torch_webgpu.bench.schema import Run, read
from torch_webgpu.bench.session import Session


def submits() -> int:
    return int(_C.stats()["submits"])


def test_what_is_held_is_one_submit_in_order() -> None:
    x = torch.zeros(64, device="webgpu")
    wait("webgpu")
    before = submits()
    with one_submit():
        for _ in range(300):
            x = x + 1.0
        assert submits() == before, "more than a submit usually takes"
        _C.drain()
        assert submits() == before + 1
    assert torch.equal(x.cpu(), torch.full((64,), 300.0))
    for _ in range(300):
        x = x + 1.0
    _C.drain()
    assert submits() > before + 3, "afterwards the usual number is submitted at once again"


def test_a_replayed_plan_is_held_too() -> None:
    compiled = torch.compile(lambda x: (x * 2.0).sum(-1, keepdim=True) + x, backend="webgpu", fullgraph=True)
    x = torch.ones(8, 8, device="webgpu")
    compiled(x)
    wait("webgpu")
    before = submits()
    with one_submit():
        for _ in range(5):
            found = compiled(x)
        assert submits() == before
    assert torch.equal(found.cpu(), torch.full((8, 8), 17.0))
    before = submits()
    compiled(x)
    _C.drain()
    assert submits() == before + 1, "a plan submits by itself"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_calls_from_cpp_are_the_calls_from_python(op: Op) -> None:
    x, y = (torch.full((16, 16), value, device="webgpu") for value in (2.0, 3.0))
    tensors = {"x": x, "y": y}
    arguments = [tensors[a] if isinstance(a, str) else a for a in op.arguments]
    made = []
    for run in (lambda: _C.run_op(op.schema, op.overload, arguments, 7), lambda: [op.python(x, y) for _ in range(7)]):
        before = _C.stats()["dispatches"]
        run()
        wait("webgpu")
        made.append(_C.stats()["dispatches"] - before)
    assert made == [7, 7]
    with pytest.raises(RuntimeError, match="no_such"):
        _C.run_op("aten::no_such", "", [], 1)
    with pytest.raises(RuntimeError, match=r"mat2|size|shape"):
        _C.run_op("aten::mm", "", [x, x[:3]], 1)


def test_passes_are_timed_while_asked_for() -> None:
    if "timestamp-query" not in runtime.device().features:
        pytest.skip("the adapter has no timestamp queries")
    x = torch.ones(64, 64, device="webgpu")
    x @ x
    _C.time_passes(True)
    x @ x
    ns, passes, dropped, untimed = _C.time_passes(False)
    assert passes == 1 and not untimed and (ns > 0 or dropped)
    x @ x
    assert _C.time_passes(False) == (0.0, 0, 0, 0)


def test_times_of_a_sample_come_one_after_the_other() -> None:
    x = torch.ones(64, 64, device="webgpu")
    sample = staged(lambda: [x @ x for _ in range(20)])
    assert 0 < sample[names.HOST] < sample[names.SUBMITTED] < sample[names.WALL]


def measured(tmp_path: Path, function: Callable[[dict[str, Any], Session], None], **request: Any) -> Run:
    """A quick run in this process, which has the adapter open already."""
    session = Session("overhead", tmp_path, quick=True)
    with session.measuring():
        function({"title": "here", "model": "tiny", **request}, session)
    return read(session.recorder.path)


def test_every_layer_is_there(tmp_path: Path) -> None:
    place = runtime.device().adapter
    run = measured(tmp_path, measure_place, implementation=place.implementation, adapter=place.index)
    found = {s.is_step: s for s in stacks(Results([(tmp_path, run)]))}
    timed = ["GPU", "queue"] if "timestamp-query" in runtime.device().features else ["GPU and queue"]
    for stack in (found[False], found[True]):
        assert [p.layer for p in stack.parts] == [*timed, "API and driver", "C++", "Python"]
        assert sum(p.estimate.value for p in stack.parts) == pytest.approx(stack.whole.value)
        assert stack.overlapped and len(stack.threads) == len(timed) + 1
    assert not run.notes or timed == ["GPU and queue"]
    samples: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for m in run.measurements:
        if m.metric in (names.HOST, names.SUBMITTED, names.WALL):
            samples.setdefault((m.workload, m.method, m.parameters["n"]), {})[m.metric] = m.samples
    staged_ = [s for s in samples.values() if names.SUBMITTED in s]
    assert len(staged_) == 2 * (3 + 3), "from C++ and from Python, an op and a step"
    for s in staged_:
        assert all(h < e < w for h, e, w in zip(s[names.HOST], s[names.SUBMITTED], s[names.WALL], strict=True))
    stages = [m for m in run.measurements if m.method == names.STAGES]
    assert [m.metric for m in stages] == list(names.STAGE_ORDER) and all(min(m.samples) > 0 for m in stages[:-1])


@pytest.mark.once
def test_the_processor_has_a_stack_too(tmp_path: Path) -> None:
    run = measured(tmp_path, measure_torch, device="cpu")
    (stack,) = stacks(Results([(tmp_path, run)]))
    assert [p.layer for p in stack.parts] == ["C++ and driver", "Python"] and stack.whole.value > 0


@pytest.mark.once
def test_the_command(tmp_path: Path) -> None:
    running = command("overhead", "--quick", "--implementation", "dawn-null", "--out", str(tmp_path), COLUMNS="160")
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    run = read(tmp_path / "overhead.json")
    assert run.complete and not run.notes and [t.implementation for t in run.targets] == ["dawn-null"]
    assert {m.workload for m in run.measurements} == {OPS[0].name, f"{names.DECODE_STEP}, tiny, 1 layer"}
    assert names.CALLS_ALONE in output, "without a target that computes there are no stacks, but the figures"


@pytest.mark.once
def test_one_model_at_a_time(tmp_path: Path) -> None:
    running = command("overhead", "--model", "tiny,Qwen2.5-0.5B", "--out", str(tmp_path))
    assert "one is measured at a time" in running.communicate(timeout=60)[1] and running.returncode == 2
