"""Another instrument's figures as a run of this one: a plain table, as CSV or JSON, one value a row.

Required columns: ``experiment, workload, method, metric, unit, value, kind, implementation, adapter``. Optional ones:
``parameters`` (``n=100; bindings=4``, or a JSON object), ``adapter_kind``, ``version``, ``backend``, ``driver`` (of the
target), ``system, cpu, cores, memory, created, instrument`` (of the run: the same in every row that has them),
``warmup`` (``true`` for values that count in no statistic) and ``note``. Rows of the same quantity are its samples, in the
order of the file. JSON is a list of such objects, whose ``value`` may be a list of samples, or an object with ``rows`` and
with defaults for all of them beside it.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from .schema import Environment, Measurement, Parameter, Quantity, ResultError, Run, Target

Format = Literal["csv", "json"]
_OF_TARGET = ("kind", "implementation", "adapter", "adapter_kind", "version", "backend", "driver")
_OF_RUN = ("system", "cpu", "cores", "memory", "created", "instrument")
REQUIRED = ("experiment", "workload", "method", "metric", "unit", "value", "kind", "implementation", "adapter")
COLUMNS = (*REQUIRED, *_OF_TARGET[3:], "parameters", *_OF_RUN, "warmup", "note")
_UNITS = {"µs": "us", "μs": "us", "tok/s": "tokens/s", "x": "ratio", "b": "bytes"}
NOT_STATED = "not stated"
_Row = tuple[str, Mapping[str, Any]]


def import_file(path: Path, form: Format) -> Run:
    """The file's figures as a complete run whose origin is ``imported``.

    Raises:
        ResultError: for what cannot be read or lacks something, with the row and the column.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ResultError(f"{path}: cannot be read: {e}") from None
    rows = list(_csv_rows(path, text) if form == "csv" else _json_rows(path, text))
    if not rows:
        raise ResultError(f"{path}: has no rows")
    return _run(path, rows, hashlib.sha256(text.encode()).hexdigest())


def _csv_rows(path: Path, text: str) -> Iterator[_Row]:
    reader = csv.DictReader(text.splitlines(), strict=True)
    try:
        _columns(path, reader.fieldnames or ())
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise ResultError(f"{where}: has not as many values as there are columns; quote those with commas")
            yield where, {k: v.strip() for k, v in row.items() if v.strip()}
    except csv.Error as e:
        raise ResultError(f"{path}, line {reader.line_num}: is no CSV: {e}") from None


def _columns(path: Path, names: Iterable[str]) -> None:
    names = list(names)
    if missing := [c for c in REQUIRED if c not in names]:
        raise ResultError(f"{path}: lacks the columns {', '.join(missing)}")
    if unknown := [c for c in names if c not in COLUMNS]:
        raise ResultError(f"{path}: has unknown columns {', '.join(unknown)}; known are {', '.join(COLUMNS)}")


def _json_rows(path: Path, text: str) -> Iterator[_Row]:
    try:
        content = json.loads(text)
    except ValueError as e:
        raise ResultError(f"{path}: is no JSON: {e}") from None
    defaults: dict[str, Any] = {}
    if isinstance(content, dict) and isinstance(content.get("rows"), list):
        defaults = {k: v for k, v in content.items() if k != "rows"}
        content = content["rows"]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ResultError(f"{path}: is neither a list of objects nor an object with such a list as 'rows'")
    for i, row in enumerate(content):
        where, whole = f"{path}, row {i + 1}", {**defaults, **row}
        if unknown := [c for c in whole if c not in COLUMNS]:
            raise ResultError(f"{where}: has unknown names {', '.join(unknown)}; known are {', '.join(COLUMNS)}")
        yield where, whole


def _run(path: Path, rows: list[_Row], content: str) -> Run:
    targets: list[Target] = []
    found: dict[Any, tuple[Quantity, str, dict[str, list[Any]]]] = {}
    for where, row in rows:
        if missing := [c for c in REQUIRED if row.get(c) in (None, "")]:
            raise ResultError(f"{where}: has no {', '.join(missing)}")
        target = _target(where, row)
        if target not in targets:
            targets.append(target)
        quantity, unit = _quantity(where, row, targets.index(target)), _UNITS.get(str(row["unit"]).lower(), str(row["unit"]))
        _, first_unit, values = found.setdefault(quantity.key, (quantity, unit, {"samples": [], "warmup": [], "notes": []}))
        if unit != first_unit:
            raise ResultError(f"{where}: is in {unit}, but rows of the same quantity before it are in {first_unit}")
        values["warmup" if _truth(where, row.get("warmup", False)) else "samples"] += _values(where, row["value"])
        if row.get("note") and row["note"] not in values["notes"]:
            values["notes"].append(str(row["note"]))
    facts = _facts(rows)
    try:
        measurements = [Measurement(**q.model_dump(), unit=unit, **v) for q, unit, v in found.values()]  # type: ignore[arg-type]
        return Run(
            run=hashlib.sha256(f"{path.name} {content}".encode()).hexdigest()[:32],  # the same file is the same run
            created=facts.get("created") or datetime.fromtimestamp(path.stat().st_mtime, timezone.utc),
            command=["imported", path.name, *([str(facts["instrument"])] if "instrument" in facts else [])],
            origin="imported",
            complete=True,
            environment=Environment(
                system=facts.get("system", NOT_STATED),
                cpu=facts.get("cpu", NOT_STATED),
                cores=facts.get("cores"),
                memory=facts.get("memory"),
                versions={},
            ),
            targets=targets,
            measurements=measurements,
        )
    except ValidationError as e:
        raise ResultError(f"{path}: {_first(e)}") from None


def _target(where: str, row: Mapping[str, Any]) -> Target:
    given = {k: row[k] for k in _OF_TARGET if row.get(k) not in (None, "")}
    try:
        return Target(**{"adapter_kind": "unknown", **given})
    except ValidationError as e:
        raise ResultError(f"{where}: {_first(e)}") from None


def _quantity(where: str, row: Mapping[str, Any], target: int) -> Quantity:
    fixed = {k: row[k] for k in ("experiment", "workload", "method", "metric")}
    try:
        return Quantity(**fixed, target=target, parameters=_parameters(where, row.get("parameters") or {}))
    except ValidationError as e:
        raise ResultError(f"{where}: {_first(e)}") from None


def _parameters(where: str, given: Any) -> dict[str, Parameter]:
    """``n=100; cache=true``, JSON text, or a mapping."""
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except ValueError as e:
            raise ResultError(f"{where}: parameters are no JSON: {e}") from None
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, Parameter] = {}
    for part in filter(None, (p.strip() for p in str(given).split(";"))):
        name, sign, value = (text.strip() for text in part.partition("="))
        if not sign or not name:
            raise ResultError(f"{where}: parameters are written as name=value; name=value, not {part!r}")
        found[name] = _scalar(value)
    return found


def _scalar(text: str) -> Parameter:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _values(where: str, given: Any) -> list[float]:
    values = given if isinstance(given, list) else [given]
    try:
        return [float(v) for v in values]
    except (TypeError, ValueError):
        raise ResultError(f"{where}: {given!r} is no number") from None


def _truth(where: str, given: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}
    if isinstance(given, bool):
        return given
    if str(given).lower() not in words:
        raise ResultError(f"{where}: warmup is true or false, not {given!r}")
    return words[str(given).lower()]


def _facts(rows: list[_Row]) -> dict[str, Any]:
    """What is of the whole run; ResultError where rows differ about it."""
    facts: dict[str, Any] = {}
    for where, row in rows:
        for name in _OF_RUN:
            if row.get(name) in (None, ""):
                continue
            if facts.setdefault(name, row[name]) != row[name]:
                raise ResultError(f"{where}: {name} is {row[name]!r}, but {facts[name]!r} before; a file is of one machine")
    return facts


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the row"
    return f"{where}: {first['msg']}" + (
        f", not {first['input']!r}" if isinstance(first["input"], str | int | float) else ""
    )
