"""Bundles of language models in the measuring page: what is generated, and the page's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import ExportError
from ..web.bundle import Bundle, Language
from ..web.serving import Files, bundle_files
from . import names
from .schema import VERSION, Parameter

METHOD = "bundle"
CONTEXTS = (16, 128, 512)
#: A step of the prompt's tokens through the vocabulary: no two in a row are alike.
_STRIDE = 7919


@dataclass(frozen=True)
class Model:
    """A bundle of a language model, and how much is measured of it.

    Attributes:
        prompts: their tokens.
        new: tokens that are timed after the first one.
        samples, warmups: generations of each prompt.
    """

    bundle: Bundle
    files: Files
    prompts: tuple[int, ...]
    new: int
    samples: int
    warmups: int

    @classmethod
    def of(cls, folder: Path, quick: bool) -> Model:
        """As much as in ``bench llm``'s modern protocol, or little.

        Raises:
            ExportError: where the folder holds no bundle, one of another kind of model, or one with a cache too small.
        """
        bundle, files = bundle_files(folder)
        if bundle.language is None:
            raise ExportError(f"{folder} holds {bundle.name}, which is no language model")
        new, samples, warmups = (8, 2, 1) if quick else (50, 10, 2)
        wanted = CONTEXTS[:1] if quick else CONTEXTS
        prompts = tuple(n for n in wanted if n + new <= bundle.language.length)
        if not prompts:
            raise ExportError(
                f"{folder}: its cache holds {bundle.language.length} tokens, {wanted[0] + new} are needed; export it anew"
            )
        return cls(bundle, files, prompts, new, samples, warmups)

    @property
    def language(self) -> Language:
        """That of the bundle."""
        assert self.bundle.language is not None
        return self.bundle.language

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Of its measurements, as ``bench llm`` has them."""
        told = {k: v for k in ("dtype", "quantize") if (v := self.bundle.about.get(k))}
        return {"dtype": "float32", **told, "protocol": "modern", "cache": "static"}

    @property
    def ids(self) -> list[int]:
        """The longest prompt; the others are its beginning."""
        ends = set(self.language.ends)
        tokens = (i * _STRIDE % self.language.vocabulary for i in range(1, 2 * max(self.prompts)))
        return [t for t in tokens if t not in ends][: max(self.prompts)]


def plan(model: Model, command: Sequence[str]) -> dict[str, Any]:
    """The page's document."""
    metrics = {"ttft": names.TTFT, "rate": names.RATE, "token": names.TOKEN, "memory": names.MEMORY}
    return {
        "schema_version": VERSION,
        "version": metadata.version("torch_webgpu"),
        "command": list(command),
        "samples": model.samples,
        "warmups": model.warmups,
        "names": {"metrics": metrics},
        "llm": {
            "workload": model.bundle.about.get("model", model.bundle.name),
            "method": METHOD,
            "parameters": model.parameters,
            "prompts": list(model.prompts),
            "new": model.new,
            "ids": model.ids,
        },
    }


def files(model: Model, page: dict[str, bytes]) -> Files:
    """The page for it, and the bundle beside.

    Args:
        page: all files of the measuring page.
    """
    return {**page, "index.html": page["llm.html"], **{f"bundle/{name}": content for name, content in model.files.items()}}
