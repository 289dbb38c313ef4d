"""Captured calls as a bundle on disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
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


class Bundler:
    """Collects calls, then writes them."""

    def __init__(
        self,
        towards: Sequence[DescribedTarget],
        named: dict[str, torch.Tensor],
        state: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """See ``Storages``; ``towards`` are those that the calls were captured for."""
        self.storages = Storages(named, state or {})
        self._targets = towards
        self._calls: list[tuple[str, Call, dict[str, torch.Tensor]]] = []

    def add(self, name: str, call: Call, inputs: dict[str, torch.Tensor] | None = None) -> None:
        """Adds a plan.

        Args:
            inputs: what a runtime hands over for it.
        """
        self.storages.add(call, inputs or {})
        self._calls.append((name, call, inputs or {}))

    def write(
        self,
        folder: Path,
        name: str,
        *,
        shard: int = LIMIT,
        language: bundle.Language | None = None,
        image: bundle.Image | None = None,
        files: dict[str, bytes] | None = None,
        about: dict[str, str] | None = None,
    ) -> bundle.Bundle:
        """Writes everything, aside first: a folder that is there holds a whole bundle or is left as it was.

        Raises:
            ExportError: for a folder that holds something else, or a plan that does not fit the targets.
        """
        if folder.is_file():
            raise ExportError(f"{folder} is a file; a bundle is a folder")
        if folder.exists() and any(folder.iterdir()) and not (folder / bundle.MANIFEST).is_file():
            raise ExportError(f"{folder} is not empty and holds no bundle; name another folder")
        aside = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "wgsl").mkdir(parents=True)
        try:
            made = self._fill(aside, name, shard, language, image, files or {}, about or {})
            if folder.exists():
                shutil.rmtree(folder)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return made

    def _fill(
        self,
        folder: Path,
        name: str,
        shard: int,
        language: bundle.Language | None,
        image: bundle.Image | None,
        files: dict[str, bytes],
        about: dict[str, str],
    ) -> bundle.Bundle:
        variants = self._variants(folder)
        buffers = self._buffers(folder, shard)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        site.write(folder, "chat" if language else "classify" if image else "model")
        listed = {str(p.relative_to(folder)): bundle.digest(p) for p in sorted(folder.rglob("*")) if p.is_file()}
        made = bundle.Bundle(
            name=name,
            producer={"torch_webgpu": __version__, "torch": torch.__version__},
            files=listed,
            buffers=buffers,
            variants=variants,
            messages=messages(),
            language=language,
            image=image,
            about=about,
        )
        (folder / bundle.MANIFEST).write_text(made.model_dump_json())
        return made

    def _variants(self, folder: Path) -> list[bundle.Variant]:
        shaders: dict[str, str] = {}
        found: list[bundle.Variant] = []
        for index, target in enumerate(self._targets):
            variant = Variant(index, target, self.storages)
            for plan, call, inputs in self._calls:
                variant.add(plan, call, inputs)
            plans = variant.finish(shaders)
            about = variant.about()
            if any(about.features == earlier.features for earlier in found):
                continue  # its kernels use no more of the device than an earlier variant's
            (folder / about.plans).write_text(plans.model_dump_json())
            found.append(about)
        for file, text in shaders.items():
            (folder / file).write_text(text)
        return found

    def _buffers(self, folder: Path, shard: int) -> list[bundle.Buffer]:
        shards = Shards(folder, shard)
        parts = [(s, self._segments(s, shards)) for s in self.storages.unique()]
        shards.close()
        return [
            bundle.Buffer(name=s.name, size=s.size, role=s.role, data=[part for region in data for part in region])  # type: ignore[arg-type]
            for s, data in parts
        ]

    @staticmethod
    def _segments(storage: Storage, shards: Shards) -> list[list[bundle.Segment]]:
        if storage.role == "input":
            return []
        found: list[list[bundle.Segment]] = []
        for region in regions(storage.tensors):
            if storage.role == "state" and not region.tensor.cpu().any():
                continue
            found.append(shards.add(region))
        return found
