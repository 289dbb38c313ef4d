"""What the commands share: where they print, and how errors that are the user's to solve are told."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from .. import _autoload

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(message: str, code: int = 2) -> typer.Exit:
    """Prints an error in one line; what it returns is to be raised."""
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    return typer.Exit(code)


def load_torch() -> None:
    """Loads PyTorch with the device: to be called before a module is imported that needs either.

    PyTorch loads the rest of the package while it is imported itself, and would meet that module half made.
    """
    _autoload()


@contextmanager
def reported() -> Iterator[None]:
    """Inside, an error whose message alone tells the user what to do becomes one line; an interrupt ends quietly."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except typer.Exit:
        raise
    except Exception as e:
        if not _is_users(e):
            raise
        raise fail(str(e)) from None


def _is_users(error: Exception) -> bool:
    """Whether the message alone tells the user what to do."""
    load_torch()
    from ..errors import LimitError, MissingImplementationError, NoAdapterError, OutOfMemoryError
    from ..llm import ModelError

    return isinstance(error, (ModelError, NoAdapterError, MissingImplementationError, OutOfMemoryError, LimitError))


def quiet() -> None:
    """Silences the bars and notices of transformers and its helpers (to be called before they are imported).

    What else warns, says so in one line.
    """
    for name, value in {
        "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "critical",
    }.items():
        os.environ.setdefault(name, value)
    if bars := sys.modules.get("tqdm"):  # which torch has imported: it looks at its variable no more
        bars.tqdm.__init__ = partialmethod(bars.tqdm.__init__, disable=True)
    warnings.filterwarnings("ignore", module=r"(transformers|huggingface_hub|gguf|accelerate)\b")

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

    warnings.showwarning = show


def device_name(device: str) -> str:
    """A device with its adapter's name."""
    import torch

    if not device.startswith("webgpu"):
        return device
    properties = torch.get_device_module("webgpu").get_device_properties()
    return f"{device}: {properties.name} ({properties.implementation}, {properties.backend})"
