"""Runs Python code in a fresh process: for what depends on the environment or ends the device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import torch_webgpu.runtime

IMPLEMENTATIONS = ["wgpu", "dawn"]
#: Hides every Vulkan and EGL driver.
NO_DRIVERS = {
    "VK_DRIVER_FILES": os.devnull,
    "VK_ICD_FILENAMES": os.devnull,
    "__EGL_VENDOR_LIBRARY_FILENAMES": os.devnull,
    "WGPU_BACKEND": "vulkan",
}


@dataclass
class Result:
    """What the process left."""

    out: str
    err: str
    code: int


def run_python(code: str, **environment: str | None) -> Result:
    """Runs ``code`` with variables set (or unset, where None); the implementation defaults to this process's."""
    settings: dict[str, str | None] = {"TORCH_WEBGPU_IMPL": torch_webgpu.runtime.device().adapter.implementation}
    env = dict(os.environ)
    for name, value in (settings | environment).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    return Result(done.stdout, done.stderr, done.returncode)


def output_of(code: str, **environment: str | None) -> str:
    """Standard output of code that must succeed."""
    result = run_python(code, **environment)
    assert result.code == 0, result.err
    return result.out.strip()


def compiled(tmp_path: Path, name: str, needed_for: str, *libraries: str) -> str:
    """The C source of the tests as a shared library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip(f"there is no C compiler (cc) for {needed_for}; apt-get install gcc")
    out = tmp_path / f"{name}.so"
    command = [
        compiler,
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(out),
        str(Path(__file__).with_name(f"{name}.c")),
        *libraries,
        "-ldl",
    ]
    subprocess.run(command, check=True, timeout=120)
    return str(out)
