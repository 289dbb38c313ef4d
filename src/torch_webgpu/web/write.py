"""Captured calls as a bundle on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .. import __version__
from ..errors import ExportError
from ..runtime import DescribedTarget
from . import bundle, site
from .build import DEFAULT_LIMITS, Storage, Storages, Variant, messages
from .capture import Call
from .shards import LIMIT, Shards, regions

#: Features that kernels are written for, the preferred ones first: a runtime takes the first that its adapter has.
VARIANTS: tuple[tuple[str, ...], ...] = (("subgroups",), ())


def targets(
    limits: dict[str, int] | None = None, variants: Sequence[Sequence[str]] = VARIANTS, rasteriser: bool = False
) -> list[DescribedTarget]:
    """Devices to export for.

    Args:
        limits: what they grant beyond the specification's defaults.
        variants: features of each.
        rasteriser: kernels are shaped for WebGPU on a CPU (SwiftShader, lavapipe) instead of a GPU.

    Raises:
        ExportError: for a limit that there is not, or below its default.
    """
    wanted = dict(limits or {})
    for name, value in wanted.items():
        if name not in DEFAULT_LIMITS:
            raise ExportError(f"limits: {name!r} is none that kernels look at; there are {', '.join(DEFAULT_LIMITS)}")
        if value < DEFAULT_LIMITS[name]:
            raise ExportError(f"limits: {name}={value} is below {DEFAULT_LIMITS[name]}, which every device grants")
    found = [DescribedTarget(tuple(features), DEFAULT_LIMITS | wanted) for features in variants]
    for target in found:
        target.adapter.kind = "cpu" if rasteriser else "unknown"
    return found


Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Extras:
    """What a bundle holds beside plans and weights.

    Attributes:
        files: contents by name.
        language: made of the storages, since it names buffers.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    language: Callable[[Storages], bundle.Language] | None = None
    image: bundle.Image | None = None

    @property
    def page(self) -> site.Kind:
        """The page that shows the bundle."""
        return "chat" if self.language else "classify" if self.image else "model"


def check_folder(folder: Path) -> None:
    """Raises ExportError for a folder that holds something else than a bundle."""
    if folder.is_file():
        raise ExportError(f"{folder} is a file; a bundle is a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / bundle.MANIFEST).is_file():
        raise ExportError(f"{folder} is not empty and holds no bundle; name another folder")


class Bundler:
    """Collects calls, then writes them."""

    def __init__(
        self,
        towards: Sequence[DescribedTarget],
        named: Callable[[], dict[str, torch.Tensor]],
        state: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """See ``Storages``.

        Args:
            towards: what the calls were captured for.
            named: called when all of them were: capturing lays some parameters out anew.
        """
        self._named, self._state = named, state or {}
        self._targets = towards
        self._calls: list[tuple[str, Call, dict[str, torch.Tensor]]] = []

    def add(self, name: str, call: Call, inputs: dict[str, torch.Tensor] | None = None) -> None:
        """Adds a plan.

        Args:
            inputs: what a runtime hands over for it.
        """
        self._calls.append((name, call, inputs or {}))

    def write(
        self, folder: Path, name: str, extras: Extras | None = None, *, shard: int = LIMIT, progress: Progress | None = None
    ) -> bundle.Bundle:
        """Writes everything, aside first: a folder that is there holds a whole bundle or is left as it was.

        Args:
            progress: told of what is done with the weights, and the share of it.

        Raises:
            ExportError: for a folder that holds something else, or a plan that does not fit the targets.
        """
        check_folder(folder)
        storages = Storages(self._named(), self._state)
        for _, call, inputs in self._calls:
            storages.add(call, inputs)
        aside = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "wgsl").mkdir(parents=True)
        try:
            made = self._fill(aside, name, extras or Extras(), storages, Shards(aside, shard), progress or (lambda *_: None))
            if folder.exists():
                shutil.rmtree(folder)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return made

    def _fill(
        self, folder: Path, name: str, extras: Extras, storages: Storages, shards: Shards, progress: Progress
    ) -> bundle.Bundle:
        variants = self._variants(folder, storages)
        parts = []
        for i, storage in enumerate(storages.unique()):
            progress("weights", i / len(storages.unique()))
            parts.append((storage, _segments(storage, shards)))
        shards.close()
        for file, content in extras.files.items():
            (folder / file).write_bytes(content)
        site.write(folder, extras.page)
        listed = {str(p.relative_to(folder)): bundle.digest(p) for p in sorted(folder.rglob("*")) if p.is_file()}
        made = bundle.Bundle(
            name=name,
            producer={"torch_webgpu": __version__, "torch": torch.__version__},
            files=listed,
            buffers=[
                bundle.Buffer(name=s.name, size=s.size, role=s.role, data=[part for region in data for part in region])
                for s, data in parts
            ],
            variants=variants,
            messages=messages(),
            language=extras.language(storages) if extras.language else None,
            image=extras.image,
            about=dict(extras.about),
        )
        (folder / bundle.MANIFEST).write_text(made.model_dump_json())
        return made

    def _variants(self, folder: Path, storages: Storages) -> list[bundle.Variant]:
        found: list[bundle.Variant] = []
        for index, target in enumerate(self._targets):
            shaders: dict[str, str] = {}
            variant = Variant(index, target, storages)
            for plan, call, inputs in self._calls:
                variant.add(plan, call, inputs)
            plans = variant.finish(shaders)
            about = variant.about()
            if any(about.features == earlier.features for earlier in found):
                continue  # its kernels use no more of the device than an earlier variant's
            (folder / about.plans).write_text(plans.model_dump_json())
            for file, text in shaders.items():
                (folder / file).write_text(text)
            found.append(about)
        return found


def _segments(storage: Storage, shards: Shards) -> list[list[bundle.Segment]]:
    if storage.role == "input":
        return []
    found: list[list[bundle.Segment]] = []
    for region in regions(storage.tensors):
        if storage.role == "state" and not region.tensor.cpu().any():
            continue
        found.append(shards.add(region))
    return found
