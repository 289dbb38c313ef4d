"""The result file: one JSON a run, with raw samples and the environment they were taken in.

A file carries a digest of its content, so that one that was cut off or edited by hand is told from one that was measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

VERSION = 1
Number = Annotated[float, Field(allow_inf_nan=False)]
Parameter = bool | int | Number | str
Unit = Literal["us", "ms", "s", "tokens/s", "bytes", "J", "W", "count", "ratio", "instructions"]
#: Floating-point operations and bytes of memory.
Work = dict[Literal["flops", "bytes"], Number]
Experiment = Literal["dispatch", "overhead", "fusion", "llm", "vision", "power"]


class ResultError(ValueError):
    """A result file that cannot be used; the message says why."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Browser(_Record):
    """The browser that a page measured in.

    Attributes:
        name: ``chrome``, ``chromium``, ``edge``, ``firefox``, ``safari``, or what it calls itself.
        timer_step: the smallest step of ``performance.now()`` that was seen, in µs.
        isolated: whether the page was cross-origin isolated, which makes the clock finer.
        visible: whether the page stayed in the foreground.
    """

    name: str = Field(max_length=80)
    version: str = Field(max_length=80)
    user_agent: str = Field(max_length=1000)
    system: str = Field(max_length=200)
    mobile: bool
    timer_step: Number
    isolated: bool
    visible: bool = True


class Environment(_Record):
    """What a figure depends on besides the program.

    Attributes:
        cores, memory: None in imported runs whose source does not say.
        versions: of Python, the package, PyTorch and the libraries measured, by name; missing ones are left out.
        load: average number of running processes in the last minute, before the run.
        governor: frequency policy of the CPU, where the system tells it.
        variables: environment variables that change behaviour.
        browser: where a page measured.
    """

    system: str
    cpu: str
    cores: int | None
    memory: int | None = Field(description="bytes")
    versions: dict[str, str]
    load: Number | None = None
    governor: str | None = None
    variables: dict[str, str] = {}
    browser: Browser | None = None


class Target(_Record):
    """What was measured: an implementation on an adapter.

    Attributes:
        kind: ``webgpu`` is a native library, ``browser`` a page's WebGPU.
        implementation: ``wgpu``, ``dawn``, ``dawn-null``, ``chrome``, ``firefox``, ``torch``, ``onnxruntime``, …
        adapter_kind: ``cpu`` is a rasteriser, ``null`` a driver that does nothing.
        clocks: what was known of the GPU's clocks before the run (MHz), by name; ``clocks_after`` of the last samples.
        peak: ``flops`` and ``bytes`` a second that simple kernels reached before the run, where no datasheet is known.
        wait_us: the least that a wait took when there was next to nothing to wait for: a poll's tick shows here.
        tuned: shapes of kernels that were measured for the adapter, by where they are from; the rest have a rule's.
    """

    kind: Literal["webgpu", "browser", "cuda", "cpu", "mps"]
    implementation: str
    version: str = ""
    adapter: str
    adapter_kind: Literal["discrete", "integrated", "cpu", "null", "unknown"]
    backend: str = ""
    driver: str = ""
    features: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    clocks: dict[str, Number] = {}
    clocks_after: dict[str, Number] = {}
    peak: Work = {}
    wait_us: Number | None = None
    tuned: dict[str, int] = {}

    @property
    def label(self) -> str:
        """A short name for tables."""
        return f"{self.implementation} on {self.adapter}" + (f" ({self.backend})" if self.backend else "")


#: Fields of a target that may differ from run to run.
PASSING: dict[str, Any] = {"clocks": {}, "clocks_after": {}, "peak": {}, "wait_us": None, "tuned": {}}


class Quantity(_Record):
    """What is measured, and how.

    Attributes:
        target: its place among the run's targets.
        parameters: what was varied (``n``: dispatches a sample, ``bindings``, ``workgroups``, …).
        metric: ``wall`` (until all is waited for), ``host`` (until the calls return), ``gpu`` (timestamps), ``rate``, …
    """

    experiment: Experiment
    workload: str
    method: str
    target: int = Field(ge=0)
    parameters: dict[str, Parameter] = {}
    metric: str

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same quantity."""
        parameters = tuple(sorted(self.parameters.items()))
        return self.experiment, self.workload, self.method, self.target, parameters, self.metric


class Measurement(Quantity):
    """Samples of one quantity.

    Attributes:
        samples: raw values in the order they were taken, outliers included.
        warmup: values before them, which count in no statistic.
        work: floating-point operations and bytes of memory that one call (or token, for a rate) needs at least.
        notes: what a reader has to know.
    """

    unit: Unit
    samples: list[Number] = Field(min_length=1)
    warmup: list[Number] = []
    work: Work = {}
    notes: list[str] = []


class Run(_Record):
    """One run of the instrument.

    Attributes:
        complete: False where it was interrupted; what is there was measured in full.
        origin: ``measured`` here or ``imported`` from another instrument's file.
        notes: what could not be measured, and why.
    """

    schema_version: Literal[1] = 1
    run: str = Field(min_length=8, description="unique name")
    created: datetime
    command: list[str]
    origin: Literal["measured", "imported"] = "measured"
    complete: bool
    environment: Environment
    targets: list[Target]
    measurements: list[Measurement]
    notes: list[str] = []

    @model_validator(mode="after")
    def _targets_exist(self) -> Run:
        for m in self.measurements:
            if m.target >= len(self.targets):
                raise ValueError(
                    f"{m.experiment} / {m.method} is about target {m.target}, but there are {len(self.targets)}"
                )
        keys = [m.key for m in self.measurements]
        if len(set(keys)) < len(keys):
            raise ValueError("two measurements are of the same quantity")
        return self

    def target_of(self, measurement: Measurement) -> Target:
        """The target of one of its measurements."""
        return self.targets[measurement.target]


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content without the digest itself, keys in order, numbers as JSON writes them."""
    plain = {k: v for k, v in content.items() if k != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write(run: Run, path: Path) -> None:
    """Writes the file as a whole: a reader, or a kill in the middle, finds the former one or the new one."""
    content = run.model_dump(mode="json")
    content["digest"] = digest(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


def read(path: Path) -> Run:
    """Reads and checks a file; see ``parse``."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ResultError(f"{path}: cannot be read: {e}") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Run:
    """Checks the text of a result file.

    Args:
        name: what messages call it.

    Raises:
        ResultError: for what is no result file, is of an unknown version, was cut off, edited, or breaks the schema.
    """
    try:
        content = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise ResultError(f"{name}: is no JSON, or was cut off: {e}") from None
    if not isinstance(content, dict) or "schema_version" not in content:
        raise ResultError(f"{name}: is no result of torch-webgpu bench (it has no schema_version)")
    if content["schema_version"] != VERSION:
        raise ResultError(
            f"{name}: has schema version {content['schema_version']!r}, this program knows {VERSION}; "
            "use the version of torch-webgpu that wrote it"
        )
    stored = content.pop("digest", None)
    if stored is None:
        raise ResultError(f"{name}: has no digest; only files written by torch-webgpu bench are taken")
    if stored != digest(content):
        raise ResultError(f"{name}: was changed after it was written (its digest does not match); measure again")
    try:
        return Run.model_validate_json(json.dumps(content))
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the run"
        raise ResultError(f"{name}: {where}: {first['msg']}") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number that a measurement can have")
