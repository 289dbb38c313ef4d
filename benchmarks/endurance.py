"""Host and device memory over many ops, and the time of importing the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from torch_webgpu import _C

STATUS = Path("/proc/self/status")


def resident_mb() -> float:
    """Resident host memory of this process in MB (Linux)."""
    line = next(text for text in STATUS.read_text().splitlines() if text.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def import_seconds(statement: str) -> float:
    """Best of three: seconds of a fresh process that runs the statement, without the bare interpreter's start."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    env_off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if statement == "import torch" else {}
    runs = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env_off}
            ).stdout
        )
        for _ in range(3)
    ]
    return min(runs)


def main() -> None:
    """Measures and prints; ``--out`` writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ops", type=int, default=1_000_000)
    args = parser.parse_args()
    torch_only, both = import_seconds("import torch"), import_seconds("import torch_webgpu")
    result: dict[str, Any] = {
        "import_seconds": {"torch": torch_only, "torch and torch_webgpu": both, "difference": both - torch_only}
    }
    x = torch.ones(64, 64, device="webgpu")
    samples = []
    start = time.perf_counter()
    with torch.inference_mode():
        for step in range(11):
            if step:
                for i in range(args.ops // 10):
                    x = x * 0.5 + float(i % 7)
            torch.webgpu.synchronize()  # type: ignore[attr-defined]
            memory = _C.memory_stats()
            samples.append(
                {
                    "ops": step * (args.ops // 10) * 2,
                    "host_mb": resident_mb(),
                    "device_bytes": memory["reserved"],
                    "buffers": memory["buffers"],
                    "recipes": _C.stats()["recipes"],
                    "bind_groups": _C.stats()["bind_groups"],
                }
            )
    result["seconds"] = time.perf_counter() - start
    result["endurance"] = samples
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
