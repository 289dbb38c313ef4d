"""Files in the user's cache folder: what was compiled once, for later processes.

An entry is one file: a line that says what it is, a line with a checksum of its key and contents, and the contents, JSON.
Nothing in it is ever executed as Python. Files are written aside and renamed, so processes may share the folder; whatever is
torn, foreign or of another version is no entry.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from .config import config

log = logging.getLogger(__name__)

_MAGIC = b"torch_webgpu cache 1\n"
_SUFFIX = ".entry"
_STALE = 3600.0  # seconds after which an unfinished file is of a process that died
LIMIT = 256 << 20  # bytes of all entries; those unused for longest go first


def user_folder() -> Path:
    """``torch_webgpu`` in the user's cache folder, as the operating system names it."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "torch_webgpu"


@cache
def folder() -> Path | None:
    """Where entries are, made if it is not there; None where ``TORCH_WEBGPU_CACHE`` turns them off or it cannot be used."""
    if config.cache.lower() in ("0", "off"):
        return None
    path = Path(config.cache).expanduser() if config.cache else user_folder() / "compiled"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid"):
            facts = path.stat()
            if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
                log.warning("%s can be written by others, so nothing is cached there; `chmod go-w` it", path)
                return None
    except OSError as e:
        log.debug("no cache: %s", e)
        return None
    return path


def digest(key: str) -> str:
    """Name of the entry of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _checksum(name: str, contents: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + contents).hexdigest().encode() + b"\n"


def load(name: str) -> Any | None:
    """The entry of that name (see ``digest``); None where there is none that can be used."""
    base = folder()
    if base is None:
        return None
    path = base / (name + _SUFFIX)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + 65
    contents = data[start:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _checksum(name, contents):
        log.debug("%s is no entry of this version, or damaged: ignored", path)
        return None
    try:
        value = json.loads(contents)
    except ValueError as e:
        log.debug("%s: %s", path, e)
        return None
    with suppress(OSError):
        os.utime(path)  # used now
    return value


def store(name: str, value: Any) -> bool:
    """Keeps a value of JSON's types under a name; says whether that worked."""
    base = folder()
    if base is None:
        return False
    contents = json.dumps(value, separators=(",", ":")).encode()
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=base, prefix="unfinished-")
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + _checksum(name, contents) + contents)
        os.replace(temporary, base / (name + _SUFFIX))
    except OSError as e:
        log.debug("not cached: %s", e)
        with suppress(OSError):
            os.unlink(temporary)
        return False
    _evict(base)
    return True


def remove(name: str) -> None:
    """Forgets an entry."""
    base = folder()
    if base is not None:
        with suppress(OSError):
            os.unlink(base / (name + _SUFFIX))


def _evict(base: Path) -> None:
    """Removes what was used longest ago until a quarter of the limit is free, and what dead processes left."""
    entries = []
    with suppress(OSError):
        for entry in os.scandir(base):
            with suppress(OSError):
                facts = entry.stat()
                if entry.name.endswith(_SUFFIX):
                    entries.append((facts.st_mtime, facts.st_size, entry.path))
                elif entry.name.startswith("unfinished-") and time.time() - facts.st_mtime > _STALE:
                    os.unlink(entry.path)
    total = sum(size for _, size, _ in entries)
    if total <= LIMIT:
        return
    for _, size, path in sorted(entries):
        with suppress(OSError):
            os.unlink(path)
        total -= size
        if total <= LIMIT * 3 // 4:
            return
