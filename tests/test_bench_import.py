"""Other instruments' tables become runs that say so, or are refused with the row and the column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torch_webgpu.bench import names
from torch_webgpu.bench.importing import REQUIRED, import_file
from torch_webgpu.bench.report import build, lines
from torch_webgpu.bench.report.render import markdown
from torch_webgpu.bench.results import load
from torch_webgpu.bench.schema import ResultError, read
from torch_webgpu.cli import app

pytestmark = pytest.mark.once

HEAD = "experiment,workload,method,metric,unit,value,kind,implementation,adapter,parameters,warmup,system"
ROW = "dispatch,empty,sequential,wall,us,{},browser,chrome,Some GPU,{},{},Linux"
TABLE = "\n".join(
    [HEAD, ROW.format(99, "n=1; bindings=2", "true")]
    + [ROW.format(50 + 20 * n + i, f"n={n}; bindings=2", "") for n in (1, 10, 100) for i in range(3)]
)


def test_a_csv_becomes_a_run(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(TABLE + "\n")
    done = CliRunner().invoke(app, ["bench", "import", str(path)])
    assert done.exit_code == 0 and "3 quantities, 9 samples" in done.output, done.output
    run = read(tmp_path / "other.imported.json")
    assert run.origin == "imported" and run.complete and run.environment.system == "Linux"
    assert run.environment.cores is None and run.environment.cpu == "not stated", "what is not there is not made up"
    first = run.measurements[0]
    assert first.samples == [70, 71, 72] and first.warmup == [99] and first.parameters == {"n": 1, "bindings": 2}
    (c,) = lines.costs(results := load([tmp_path / "other.imported.json"]))
    slope = c.of(names.SEQUENTIAL)
    assert slope and slope.value == pytest.approx(20, rel=0.01)
    text = markdown(build.document(results))
    assert "Imported from another instrument" in text and "chrome on Some GPU, imported" in text
    again = CliRunner().invoke(app, ["bench", "import", str(path)])
    assert again.exit_code == 2 and "exists" in again.output


def test_json_with_defaults_and_lists(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    shared = {"experiment": "llm", "workload": "Qwen2.5-0.5B", "metric": "rate", "unit": "tok/s", "kind": "webgpu"}
    shared |= {"implementation": "onnxruntime", "adapter": "RTX 5090", "instrument": "another 1.0"}
    rows = [{"method": "plain", "value": [13.1, 13.2], "parameters": {"dtype": "float32"}, "note": "n from a table"}]
    path.write_text(json.dumps({**shared, "rows": rows}))
    run = import_file(path, "json")
    (m,) = run.measurements
    assert m.unit == "tokens/s" and m.samples == [13.1, 13.2] and m.parameters == {"dtype": "float32"}
    assert m.notes == ["n from a table"] and run.command == ["imported", "other.json", "another 1.0"]
    assert import_file(path, "json").run == run.run, "the same file is the same run"


ONE = dict(zip(REQUIRED, ["dispatch", "empty", "sequential", "wall", "us", 1.0, "webgpu", "wgpu", "a GPU"], strict=True))


@pytest.mark.parametrize(
    ("rows", "message"),
    (
        ([{**ONE, "value": "fast"}], "row 1: 'fast' is no number"),
        ([{**ONE, "value": float("inf")}], "samples.0: Input should be a finite number"),
        ([{**ONE, "experiment": "speed"}], "row 1: experiment: Input should be 'dispatch'"),
        ([{**ONE, "unit": "parsec"}], "unit: Input should be 'us'"),
        ([{**ONE, "kind": "gpu"}], "row 1: kind: Input should be 'webgpu'"),
        ([{**ONE, "adaptor": "x"}], "row 1: has unknown names adaptor; known are experiment"),
        ([{k: v for k, v in ONE.items() if k != "metric"}], "row 1: has no metric"),
        ([ONE, {**ONE, "unit": "ms"}], "row 2: is in ms, but rows of the same quantity before it are in us"),
        ([{**ONE, "system": "a"}, {**ONE, "system": "b"}], "row 2: system is 'b', but 'a' before"),
        ([{**ONE, "parameters": "n"}], "written as name=value"),
        ([{**ONE, "warmup": "perhaps"}], "warmup is true or false"),
        ([{**ONE, "warmup": True}], "samples: List should have at least 1 item"),
        ([], "has no rows"),
        ({"no": "rows"}, "is neither a list of objects"),
    ),
)
def test_what_is_wrong_is_said(rows: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(ResultError) as e:
        import_file(path, "json")
    assert message in str(e.value) and str(path) in str(e.value)


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("a,b\n1,2\n", "lacks the columns experiment"),
        (HEAD + ",speed\n", "has unknown columns speed"),
        (f"{HEAD}\n{ROW.format(1, '', '')},,,\n", "line 2: has not as many values as there are columns"),
        (f"{HEAD}\n{ROW.format('', '', '')}\n", "line 2: has no value"),
    ),
)
def test_wrong_csv(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ResultError, match=message):
        import_file(path, "csv")
    done = CliRunner().invoke(app, ["bench", "import", str(path)])
    assert done.exit_code == 1 and not path.with_suffix(".imported.json").exists()
    done = CliRunner().invoke(app, ["bench", "import", str(path.rename(tmp_path / "bad.txt"))])
    assert done.exit_code == 2 and "its ending says no format" in done.output.replace("\n", " ")
