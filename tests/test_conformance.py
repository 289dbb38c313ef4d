"""The machinery behind ``make conformance``: verdicts on what is wrong, and workers that crash or hang."""

from __future__ import annotations

import sys
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import judge as judging
from conformance import samples, special, table
from conformance.campaign import Journal, run
from conformance.compare import mismatch
from conformance.judge import Depth, Verdict, judge
from conformance.moving import Call, moved, too_wide
from conformance.pairs import infos

SMALL = Depth(forward=1, others=1, edges=False)


@pytest.mark.parametrize("harm", [lambda y: y + 1, lambda y: y.half(), lambda y: y[:0], lambda y: y.cpu()])
def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch, harm: Any) -> None:
    def op(x: torch.Tensor, **options: Any) -> torch.Tensor:
        y = torch.sin(x, **options)
        return harm(y) if x.device.type == "webgpu" and y.dim() else y

    changed = copy(infos()["sin"])
    changed.op = op
    monkeypatch.setitem(infos(), "sin", changed)
    verdict = judge(("sin", "float32"), SMALL)
    assert verdict.verdict == "wrong" and verdict.reason and "float32" in verdict.sample


def test_verdicts() -> None:
    assert judge(("sin", "float32"), SMALL) == Verdict("native")
    assert judge(("nn.functional.hardswish", "float32"), SMALL).verdict in ("native", "decomposed")
    fell = judge(("cholesky_inverse", "float32"), SMALL)
    assert fell.verdict == "fell back" and "cholesky_inverse" in fell.reason
    refused = judge(("cfloat", "float32"), SMALL)
    assert refused.verdict == "refused" and "complex" in refused.reason


def test_what_must_raise_and_does_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        return x if x.device.type == "webgpu" else torch.gather(x, *args, **options)

    calls = [Call("error", torch.ones(3), (0, torch.zeros(2, 2, dtype=torch.int64)), {})]
    assert judging._error("gather", lenient, calls[0]) is not None
    assert judging._error("gather", torch.gather, calls[0]) is None


def test_tensors_keep_strides_and_shared_storage() -> None:
    base = torch.arange(24.0)
    call = Call("forward", base[2:14].view(3, 4).t(), (base[3:6], torch.ones(1).expand(4)), {"device": "cpu"})
    there = moved(call)
    for here, gone in zip(call.tensors, there.tensors, strict=True):
        assert gone.device.type == "webgpu" and gone.stride() == here.stride() and torch.equal(gone.cpu(), here)
    there.args[0].fill_(-1)
    assert float(there.input[1, 0]) == -1 and there.kwargs["device"] == "webgpu"
    assert (
        too_wide([torch.ones(1, dtype=torch.float64)]) and too_wide({"dtype": torch.complex64}) and not too_wide(call.values)
    )


def test_extremal_samples_reach_the_edges() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        values = samples.extremes(dtype)
        assert values.isnan().any() and values.isinf().sum() == 2 and (values == torch.finfo(dtype).max).any()
        assert ((values != 0) & (values.double().abs() < torch.finfo(dtype).tiny)).any() and values.signbit().any()
    assert samples.extremes(torch.int8).tolist() == [-128, -127, -1, 0, 1, 2, 126, 127]
    changed = list(samples.sprinkled([Call("forward", torch.ones(4), (), {})]))
    assert len(changed) == 4 and all(not torch.equal(c.input, torch.ones(4)) for c in changed)


def test_places_of_equal_elements_are_free() -> None:
    call = Call("forward", torch.tensor([2.0, 1.0, 1.0]), (), {})
    assert special.places_agree("sort", call, torch.tensor([2, 1, 0]), torch.tensor([1, 2, 0]))
    assert not special.places_agree("sort", call, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))


def test_a_result_as_exact_as_float64_is_right() -> None:
    call = Call("forward", torch.ones(1), (), {})
    got, coarse = torch.tensor([1.001], device="webgpu"), torch.tensor([1.0])
    assert mismatch("sin", call, got, coarse) is not None
    assert mismatch("sin", call, got, coarse, lambda: torch.tensor([1.001], dtype=torch.float64)) is None


STUB = """
import json, os, sys, time
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
print(json.dumps("ready"), file=out)
for line in sys.stdin:
    name, dtype = json.loads(line)
    if name == "dies":
        os.abort()
    if name == "sleeps":
        time.sleep(60)
    with open(sys.argv[0] + ".seen", "a") as seen:
        print(name, file=seen)
    print(json.dumps({"verdict": "native", "reason": "", "sample": ""}), file=out)
"""


@pytest.mark.once
def test_crashes_and_hangs_are_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    script, journal = tmp_path / "stub.py", tmp_path / "journal.jsonl"
    script.write_text(STUB)
    pairs = [(name, "float32") for name in ("a", "dies", "b", "sleeps", "c", "d")]
    command = (sys.executable, str(script))
    first = run(pairs[:2], Journal(journal), 1, command, 5)
    assert first["a", "float32"] == Verdict("native") and first["dies", "float32"].verdict == "crashed"
    found = run(pairs, Journal(journal), 2, command, 5)  # what was known is not asked again
    assert [found[pair].verdict for pair in pairs] == ["native", "crashed", "native", "hung", "native", "native"]
    assert sorted((tmp_path / "stub.py.seen").read_text().split()) == ["a", "b", "c", "d"]


@pytest.mark.once
def test_data_and_page_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "DATA", tmp_path / "ops.csv")
    monkeypatch.setattr(table, "PAGE", tmp_path / "ops.md")
    verdicts = {
        ("b", "int64"): Verdict("fell back", "aten::b, c"),
        ("a", "float32"): Verdict("native"),
        ("b", "float32"): Verdict("wrong", "1 instead of |2|", "forward(float32[2], 'x')"),
    }
    table.write(verdicts)
    assert table.read(table.DATA) == verdicts
    page = table.PAGE.read_text()
    assert page == table.page(table.read(table.DATA)) and "| b | **W** |" in page and "33.3 %" in page and "\\|2\\|" in page
