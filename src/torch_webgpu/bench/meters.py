"""Energy counters of the machine: NVML's of an NVIDIA GPU, RAPL's of the processor's packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

RAPL = Path("/sys/class/powercap")


class NoMeterError(RuntimeError):
    """A counter that does not answer; the message says why."""


class Meter(Protocol):
    """A counter that only grows."""

    name: str
    covers: str

    def joules(self) -> float:
        """Since some moment in the past."""
        ...


def nvml_handle(adapter: str, library: Any = None) -> tuple[Any, Any]:
    """NVML, initialised, and its handle of the one GPU of a name; raises NoMeterError as ``Nvml`` does."""
    if library is None:
        try:
            import pynvml
        except ImportError:
            raise NoMeterError("NVML is not asked: the package nvidia-ml-py is not installed") from None
        library = pynvml
    try:
        library.nvmlInit()
        handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
        found = [h for h in handles if _plain(_text(library.nvmlDeviceGetName(h))) == _plain(adapter)]
        if len(found) != 1:
            names = ", ".join(_text(library.nvmlDeviceGetName(h)) for h in handles) or "no GPU"
            which = "none of which is" if not found else "several of which are"
            raise NoMeterError(f"NVML shows {names}, {which} {adapter}")
        return library, found[0]
    except library.NVMLError as e:
        raise NoMeterError(f"NVML does not answer: {e}") from None


class Nvml:
    """The energy counter of one NVIDIA GPU (Volta and later), all of its board.

    Raises:
        NoMeterError: without the library, the driver, a GPU of the name, or the counter; and where several GPUs have the
            name, for then nothing tells which of them works.
    """

    name = "nvml"

    def __init__(self, adapter: str, library: Any = None) -> None:
        self._library, self._handle = nvml_handle(adapter, library)
        self.covers = f"the board of {adapter}, by NVML"
        try:
            self.joules()
        except self._library.NVMLError as e:
            raise NoMeterError(f"NVML does not answer: {e}") from None

    def joules(self) -> float:
        """The driver counts millijoules."""
        return float(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


@dataclass
class _Package:
    """One counter of RAPL; it starts again at its range, which takes minutes."""

    folder: Path
    range: int
    last: int
    total: int = 0


class Rapl:
    """The processor's packages, all of them, without memory.

    Raises:
        NoMeterError: where the system has no counter, or lets only an administrator read it.
    """

    name = "rapl"
    covers = "the processor's packages, by RAPL"

    def __init__(self, root: Path = RAPL) -> None:
        folders = sorted(p for p in root.glob("*-rapl:*") if p.name.count(":") == 1)
        if not folders:
            raise NoMeterError(f"RAPL does not answer: {root} has no package")
        try:
            self._packages = [
                _Package(f, int((f / "max_energy_range_uj").read_text()), int((f / "energy_uj").read_text()))
                for f in folders
            ]
        except (OSError, ValueError) as e:
            raise NoMeterError(f"RAPL does not answer: {e}") from None

    def joules(self) -> float:
        """To be read at least once a minute, so that no start from 0 is missed."""
        for p in self._packages:
            now = int((p.folder / "energy_uj").read_text())
            p.total += (now - p.last) % (p.range + 1)
            p.last = now
        return sum(p.total for p in self._packages) / 1e6


def meters(adapter: str, on_cpu: bool) -> tuple[list[Meter], list[str]]:
    """The counters that answer for an adapter, and of the others why not.

    Args:
        adapter: its name.
        on_cpu: whether it is the processor itself: then no GPU has anything to do with it.
    """
    found: list[Meter] = []
    reasons: list[str] = []
    kinds: Sequence[Any] = (Rapl,) if on_cpu else (lambda: Nvml(adapter), Rapl)
    for make in kinds:
        try:
            found.append(make())
        except NoMeterError as e:
            reasons.append(str(e))
    return found, reasons


def _plain(name: str) -> str:
    """As the driver and WebGPU both call it."""
    return name.lower().removeprefix("nvidia").split("/")[0].strip()


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
