"""Result files read together: what was measured where, which runs repeat another, and what had to be refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bounds import impossible
from .schema import PASSING, Environment, Measurement, Parameter, ResultError, Run, Target, read

#: Variables that say where files lie or what is chosen, which the target shows anyway.
_NEUTRAL = {"TORCH_WEBGPU_CACHE", "TORCH_WEBGPU_ADAPTER", "TORCH_WEBGPU_IMPL", "CUDA_VERSION", "CUDA_HOME"}
_KINDS = ("discrete", "integrated", "unknown", "cpu", "null")


@dataclass(frozen=True)
class Source:
    """A target on a machine: figures of two sources are set side by side, never pooled."""

    target: Target
    machine: str
    settings: tuple[tuple[str, str], ...]
    imported: bool

    @property
    def rank(self) -> tuple[bool, int, int, bool, str]:
        """What was measured here comes first, then real GPUs through native libraries, and the package's default."""
        kinds, t = ("webgpu", "browser", "cuda", "mps", "cpu"), self.target
        return self.imported, _KINDS.index(t.adapter_kind), kinds.index(t.kind), t.implementation != "wgpu", t.implementation


@dataclass(frozen=True)
class Take:
    """One measurement of a quantity in one run."""

    run: Run
    path: Path
    measurement: Measurement


@dataclass
class Series:
    """A quantity on a source, with every run that measured it, the newest last."""

    source: Source
    takes: list[Take] = field(default_factory=list)

    @property
    def now(self) -> Measurement:
        """The newest complete run's, or the newest where none is complete."""
        complete = [t for t in self.takes if t.run.complete]
        return (complete or self.takes)[-1].measurement

    @property
    def interrupted(self) -> bool:
        """Whether only interrupted runs have it."""
        return not any(t.run.complete for t in self.takes)

    @property
    def samples(self) -> list[float]:
        """Of the run that counts."""
        return self.now.samples

    def parameter(self, name: str, default: Parameter | None = None) -> Any:
        """What a parameter was."""
        return self.now.parameters.get(name, default)


class Results:
    """All that the given files hold."""

    def __init__(self, runs: Iterable[tuple[Path, Run]], refused: Sequence[ResultError] = ()) -> None:
        self.runs = sorted(runs, key=lambda r: r[1].created)
        self.refused = list(refused)
        self.impossible: list[str] = []  # what is above the device's peak is in no figure
        self._series: dict[tuple[Any, ...], Series] = {}
        for path, run in self.runs:
            for m in run.measurements:
                if (why := impossible(m, run.target_of(m))) is not None:
                    self.impossible.append(f"{path.name}: {why}")
                    continue
                source = source_of(run, run.target_of(m))
                parameters = tuple(sorted(m.parameters.items()))
                key = (source, m.experiment, m.workload, m.method, parameters, m.metric, m.unit)
                self._series.setdefault(key, Series(source)).takes.append(Take(run, path, m))
        self._labels = _labels({s.source for s in self._series.values()})

    def find(self, experiment: str, **wanted: str) -> list[Series]:
        """Series of an experiment whose workload, method, metric or unit are as wanted; best sources first."""
        found = [
            s
            for s in self._series.values()
            if s.now.experiment == experiment and all(getattr(s.now, k) == v for k, v in wanted.items())
        ]
        return sorted(found, key=lambda s: s.source.rank)

    @property
    def all(self) -> list[Series]:
        """Every series."""
        return list(self._series.values())

    def label(self, source: Source) -> str:
        """A name that no other source of these files has."""
        return self._labels[source]


def source_of(run: Run, target: Target) -> Source:
    """Where a run measured a target; clocks and load may differ between runs of one source."""
    environment = run.environment
    machine = f"{environment.cpu}, {environment.cores} cores"
    settings = tuple((k, v) for k, v in environment.variables.items() if k not in _NEUTRAL)
    if environment.browser is not None and not environment.browser.isolated:
        settings += (("isolated", "no"),)  # a coarser clock
    return Source(_frozen(target), machine, settings, run.origin == "imported")


def _frozen(target: Target) -> Target:
    """The target as far as it tells one source from another; hashable."""
    return Named.model_validate(target.model_copy(update={**PASSING, "limits": {}, "features": ()}).model_dump())


class Named(Target):
    """A target as a key."""

    def __hash__(self) -> int:
        return hash((self.kind, self.implementation, self.version, self.adapter, self.backend, self.driver))


def _labels(sources: set[Source]) -> dict[Source, str]:
    """The target's own label, and as much more as tells it from the others."""
    parts = {s: [s.target.label + (", imported" if s.imported else "")] for s in sources}
    more = (
        lambda s: f"version {s.target.version}" if s.target.version else "",
        lambda s: s.machine,
        lambda s: s.target.driver,
        lambda s: " ".join(f"{k}={v}" for k, v in s.settings),
    )
    for extra in more:
        texts = [tuple(p) for p in parts.values()]
        double = {text for text in texts if texts.count(text) > 1}
        for text in double:
            alike = [s for s in sources if tuple(parts[s]) == text]
            if len({extra(s) for s in alike}) > 1:
                for s in alike:
                    parts[s].append(extra(s) or "otherwise")
    return {s: ", ".join(p) for s, p in parts.items()}


def files(paths: Iterable[Path]) -> list[Path]:
    """The files named, and every JSON file in the folders named.

    Raises:
        ResultError: where a path does not exist or a folder holds no JSON file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.json") if not p.name.startswith("."))
            if not inside:
                raise ResultError(f"{path}: holds no .json file")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise ResultError(f"{path}: does not exist")
    return list(dict.fromkeys(found))


def load(paths: Iterable[Path]) -> Results:
    """Reads files; those that cannot be used are kept as errors. The same run twice counts once."""
    runs: dict[str, tuple[Path, Run]] = {}
    refused: list[ResultError] = []
    for path in files(paths):
        try:
            run = read(path)
        except ResultError as e:
            refused.append(e)
            continue
        former = runs.get(run.run)
        if former is None or len(run.measurements) > len(former[1].measurements):
            runs[run.run] = path, run
    return Results(runs.values(), refused)


def same_machine(a: Environment, b: Environment) -> bool:
    """Whether two runs were on machines of the same kind."""
    return (a.cpu, a.cores) == (b.cpu, b.cores)
