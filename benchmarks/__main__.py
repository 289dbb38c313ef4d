"""``python -m benchmarks``: every benchmark on the present device, JSON under ``benchmarks/results/``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Runs each benchmark in a process of its own."""
    properties = torch.webgpu.get_device_properties()  # type: ignore[attr-defined]
    adapter = "".join(c if c.isalnum() else "-" for c in properties.name.split("(")[0].strip().lower())
    RESULTS.mkdir(exist_ok=True)
    for name in ("host_cost", "endurance", "generate"):
        out = RESULTS / f"{name}-{adapter}-{properties.implementation}.json"
        subprocess.run([sys.executable, str(Path(__file__).parent / f"{name}.py"), "--out", str(out)], check=True)
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
