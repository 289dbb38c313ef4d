"""A campaign of the instrument: parts that were done are kept, one that fails says so and the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import bench_files
import pytest
from typer.testing import CliRunner

from torch_webgpu.cli import app, bench, bench_all

pytestmark = pytest.mark.once

INVOKE = CliRunner().invoke


def parts(monkeypatch: pytest.MonkeyPatch, broken: Sequence[str] = ()) -> list[list[str]]:
    """Stands in for the processes: each writes a file of known samples. Returns the command lines, as they come."""
    asked: list[list[str]] = []

    def run(arguments: Sequence[str]) -> int:
        asked.append(list(arguments))
        part, folder = arguments[0], Path(arguments[-1])
        if part in broken:
            return 1
        make = getattr(bench_files, part)()
        make.write(folder / f"{part}.json", command=["torch-webgpu", "bench", *arguments[:-2]])
        return 0

    monkeypatch.setattr(bench_all, "run_part", run)
    return asked


def test_one_part_fails_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["bench", "all", "--quick", "--only", "llm,vision,power", "--out", str(tmp_path)]
    asked = parts(monkeypatch, broken=["llm"])
    told = INVOKE(app, command)
    assert told.exit_code == 1 and "failed: llm" in told.output
    assert [a[0] for a in asked] == ["llm", "vision", "power"] and all("--quick" in a for a in asked)
    assert (tmp_path / "report" / "report.html").is_file() and (tmp_path / "report" / "report.md").is_file()
    # the same command goes on with what is missing
    asked = parts(monkeypatch)
    told = INVOKE(app, command)
    assert told.exit_code == 0 and [a[0] for a in asked] == ["llm"] and told.output.count("kept") == 2
    # a thorough campaign is another one
    asked = parts(monkeypatch)
    assert INVOKE(app, ["bench", "all", "--only", "vision", "--out", str(tmp_path)]).exit_code == 0
    assert [a[0] for a in asked] == ["vision"] and "--quick" not in asked[0]


def test_interrupted_parts_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench_files.power().write(tmp_path / "power.json", complete=False, command=["torch-webgpu", "bench", "power", "--quick"])
    asked = parts(monkeypatch)
    assert INVOKE(app, ["bench", "all", "--quick", "--only", "power", "--out", str(tmp_path)]).exit_code == 0
    assert [a[0] for a in asked] == ["power"]
    told = INVOKE(app, ["bench", "all", "--only", "abacus", "--out", str(tmp_path)])
    assert told.exit_code == 2 and "'abacus' is not one of dispatch" in told.output.replace("\n", " ")


def test_a_part_is_a_process(tmp_path: Path) -> None:
    assert bench_all.run_part(["power", "--runs", "1", "--out", str(tmp_path)]) == 2  # at least 2: an error of its own
    registered = {
        command.name or (command.callback.__name__ if command.callback else "") for command in bench.app.registered_commands
    }
    assert set(bench_all.PARTS) | {"all", "browser", "report", "validate", "import"} == registered
