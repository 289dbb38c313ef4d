"""What lies in every bundle beside the model: its page, the JavaScript runtime, and the tokenizer's library."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Kind = Literal["chat", "classify", "model", "models"]

STATIC = Path(__file__).parent / "static"
_SHARED = ("measure/base.css", "measure/browser.js", "measure/elements.js", "measure/help.js")
_VENDOR = "vendor/tokenizer.js"
_NO_VENDOR = (
    "the tokenizer's library is not built, so no browser can load the exported model: run `npm ci && npm run vendor` in the "
    "source tree of torch_webgpu, then export again"
)


def files(kind: Kind) -> dict[str, Path]:
    """The files of a page by their names beside ``bundle.json``."""
    found = {"index.html": STATIC / "pages" / f"{kind}.html"}
    for folder in ("pages", "runtime"):
        kept = (p for p in sorted((STATIC / folder).iterdir()) if p.is_file() and p.suffix != ".html")
        found |= {f"{folder}/{p.name}": p for p in kept}
    found |= {name: STATIC / name for name in _SHARED}
    if kind == "chat" and (STATIC / _VENDOR).is_file():
        found[_VENDOR] = STATIC / _VENDOR
    return found


def write(folder: Path, kind: Kind) -> None:
    """Copies a page to a folder; warns where the tokenizer's library is missing."""
    found: Mapping[str, Path] = files(kind)
    if kind == "chat" and _VENDOR not in found:
        warnings.warn(_NO_VENDOR, stacklevel=2)
    for name, source in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
