"""Bundles as pages of the local server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ..errors import ExportError
from . import site
from .bundle import MANIFEST, Bundle

Files = dict[str, bytes | Path]
_WAY_OUT = "make a bundle with torch_webgpu.web.export or `torch-webgpu export`"


def bundle_files(folder: Path) -> tuple[Bundle, Files]:
    """A bundle's manifest and what is served of it; files are read, and checked, where they arrive.

    Raises:
        ExportError: where there is no bundle, or one that is not whole.
    """
    try:
        made = Bundle.model_validate_json((folder / MANIFEST).read_text())
    except (OSError, UnicodeDecodeError, ValidationError) as e:
        raise ExportError(f"{folder} holds no bundle of this version ({_short(e)}); {_WAY_OUT}") from e
    for name, file in made.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != file.size:
            raise ExportError(f"{path} is missing or damaged: export the model again, or copy the whole folder")
    own: Files = {MANIFEST: folder / MANIFEST, **{name: folder / name for name in made.files}}
    return made, {**site.files(kind(made)), **own}


def _short(error: Exception) -> str:
    return str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)


def kind(made: Bundle) -> site.Kind:
    """Which page a bundle has."""
    return "chat" if made.language else "classify" if made.image else "model"


def files(folders: Sequence[Path]) -> tuple[list[Bundle], Files]:
    """What to serve of folders: a bundle with its page, or several with a page that lists them.

    Args:
        folders: of bundles, or of folders of bundles.

    Raises:
        ExportError: where a folder holds none.
    """
    found = [bundle for folder in folders for bundle in _bundles(folder)]
    parts = [(folder, *bundle_files(folder)) for folder in found]
    if len(parts) == 1:
        return [parts[0][1]], parts[0][2]
    served: Files = dict(site.files("models"))
    listed: list[dict[str, str | int]] = []
    for folder, made, own in parts:
        place = folder.resolve().name
        place = place if f"{place}/{MANIFEST}" not in served else f"{place}-{len(listed) + 1}"
        served |= {f"{place}/{name}": content for name, content in own.items()}
        size = sum(file.size for file in made.files.values())
        listed.append({"folder": place, "name": made.name, "kind": kind(made), "size": size})
    served["models.json"] = json.dumps(listed).encode()
    return [made for _, made, _ in parts], served


def _bundles(folder: Path) -> list[Path]:
    if (folder / MANIFEST).is_file():
        return [folder]
    inside = sorted(p.parent for p in folder.glob(f"*/{MANIFEST}")) if folder.is_dir() else []
    if not inside:
        raise ExportError(f"{folder} holds no {MANIFEST}, and no folder in it does; {_WAY_OUT}")
    return inside
