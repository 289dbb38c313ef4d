"""A few random programs on the device against the CPU, and those that once failed (``make nightly`` runs many)."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import random_programs
import torch
from graphs import Drawn, Layout
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_programs import as_test, check_program, check_written, draw_program, hunt


@settings(max_examples=3 * settings().max_examples)
@given(st.data())
def test_random_programs(data: Any) -> None:
    check(data, compiled=False)


@given(st.data())
def test_random_compiled_programs(data: Any) -> None:
    check(data, compiled=True)


def check(data: Any, compiled: bool) -> None:
    drawn = draw_program(lambda options: data.draw(st.sampled_from(options)), compiled)
    note(as_test(drawn))
    check_program(drawn, compiled)


@pytest.mark.once
def test_a_failure_becomes_a_small_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with a ``cat`` count as wrong: what the hunt prints is a test of little else, and a valid one."""
    runs = []

    def check_instead(drawn: Drawn, compiled: bool) -> None:
        runs.append(drawn)
        assert not any(node.target is torch.cat for node in drawn.module.graph.nodes), "a cat"

    monkeypatch.setattr(random_programs, "check_program", check_instead)
    found = hunt(400, 1, False)
    assert found is not None and len(runs) > 1
    assert found.startswith("# seed 1, eager: AssertionError (check_instead): a cat")
    assert found.count(" = torch.") + found.count(" = x") <= 3
    names: dict[str, Any] = {
        "torch": torch,
        "operator": operator,
        "Layout": Layout,
        "check_written": check_written,
        "Any": Any,
    }
    exec(found, names)
    names["test_found"]()


# ------------------------------------------------------------------------------------------------------ once found, by seed


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_number_is_converted_before_it_divides(mode: str) -> None:
    def program(device: Any, x0: Any, x1: Any) -> Any:
        return (torch.div(x0, x1, rounding_mode=mode), torch.remainder(x0, x1), torch.lt(x0, x1))

    bases = [torch.tensor([0, 5, 3], dtype=torch.uint8), torch.tensor([-3], dtype=torch.int8)]
    check_written(program, bases, [Layout(0, (3,), (1,), 0), Layout(1, (), (), 0)])
