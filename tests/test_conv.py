"""Convolution, pooling, padding, resampling and normalisation against the CPU in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name that everyone uses

import torch_webgpu  # noqa: F401 - registers the device

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)


def compare(f: Callable[..., Any], *tensors: torch.Tensor, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> None:
    """Runs ``f`` on the device in ``dtype`` and on the CPU in float64, from the same rounded values, three times."""
    inputs = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
    expected = f(*[t.double() if t.is_floating_point() else t for t in inputs])
    for _ in range(3):  # the first call prepares what the next ones replay
        got = f(*[t.to("webgpu") for t in inputs])
        pairs = zip(got, expected, strict=True) if isinstance(expected, (tuple, list)) else [(got, expected)]
        for g, e in pairs:
            assert g.device.type == "webgpu"
            assert g.shape == e.shape
            if not e.is_floating_point():
                assert torch.equal(g.cpu(), e)
                continue
            tolerance = TOLERANCE[dtype] * scale
            torch.testing.assert_close(g.cpu().double(), e, rtol=tolerance, atol=tolerance)


def rand(*sizes: int, seed: int = 0) -> torch.Tensor:
    """Normal values, the same at every call."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed + sum(sizes)))


def gradients(f: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """A function that returns the gradients of ``f``'s arguments for an uneven gradient of its result."""

    def run(*args: torch.Tensor) -> list[torch.Tensor]:
        leaves = [a.detach().requires_grad_() for a in args]
        y = f(*leaves)
        y.backward(y.detach())
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    return run


# ---------------------------------------------------------------------------------------------------- convolution

CONVOLUTIONS = [
    # input, weight, options
    ((2, 16, 13, 11), (24, 16, 3, 3), {"padding": 1}),
    ((1, 17, 7, 5), (13, 17, 1, 1), {}),
    ((2, 3, 29, 23), (32, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 20, 9, 13), (11, 20, 3, 2), {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
    ((1, 64, 8, 8), (128, 64, 3, 3), {"padding": 1}),
    ((2, 12, 10, 10), (12, 1, 3, 3), {"padding": 1, "groups": 12}),
    ((2, 12, 10, 9), (24, 1, 5, 3), {"padding": 2, "groups": 12, "stride": 2}),
    ((2, 24, 7, 7), (32, 12, 3, 3), {"padding": "same", "groups": 2}),
    ((1, 2, 5, 5), (1, 2, 3, 3), {}),
    ((3, 1, 1, 1), (5, 1, 1, 1), {}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("x", "w", "options"), CONVOLUTIONS)
def test_conv2d(x: Any, w: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    weight = rand(*w) / (w[1] * w[2] * w[3]) ** 0.5
    compare(lambda a, b, c: F.conv2d(a, b, c, **options), rand(*x), weight, rand(w[0], seed=1), dtype=dtype, scale=2)


@pytest.mark.parametrize(
    ("w", "options"),
    [
        ((16, 24, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((16, 5, 2, 2), {"stride": 2, "groups": 4}),
        ((16, 1, 3, 3), {"groups": 16, "dilation": 2}),
        ((16, 9, 3, 1), {"stride": 3, "padding": (2, 0)}),
    ],
)
def test_conv_transpose2d(w: Any, options: dict[str, Any]) -> None:
    compare(lambda a, b: F.conv_transpose2d(a, b, **options), rand(2, 16, 7, 5), rand(*w) / 6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_conv_other_ranks(dtype: torch.dtype) -> None:
    compare(
        lambda a, b, c: F.conv1d(a, b, c, stride=2, padding=1),
        rand(2, 16, 31),
        rand(9, 16, 3) / 7,
        rand(9),
        dtype=dtype,
    )
    compare(lambda a, b: F.conv1d(a, b), rand(16, 31), rand(8, 16, 3) / 7, dtype=dtype)
    compare(lambda a, b: F.conv_transpose1d(a, b, stride=4), rand(1, 16, 7), rand(16, 8, 5) / 7, dtype=dtype)
    compare(lambda a, b: F.conv3d(a, b, padding=1), rand(2, 8, 5, 4, 3), rand(8, 8, 3, 2, 3) / 12, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_conv_any_strides(dtype: torch.dtype) -> None:
    x, w = rand(3, 16, 9, 7), rand(24, 16, 2, 3, 3) / 12
    last = torch.channels_last
    compare(lambda a, b: F.conv2d(a, b[:, :, 1]), x, w, dtype=dtype)
    compare(lambda a, b: F.conv2d(a.to(memory_format=last), b[:, :, 0].to(memory_format=last)), x, w, dtype=dtype)
    compare(lambda a, b: F.conv2d(a[1:, :, ::2, 1:], b[:, :, 1]), x, w, dtype=dtype)
    compare(lambda a, b: F.conv2d(a.transpose(2, 3), b[:, :, 1].flip(0)), x, w, dtype=dtype)
    compare(lambda a, b: F.conv2d(a[:, :1].expand(3, 16, 9, 7), b[:, :, 1]), x, w, dtype=dtype)


def test_conv_empty_batch() -> None:
    compare(lambda a, b: F.conv2d(a[:0], b, padding=1), rand(2, 4, 5, 5), rand(8, 4, 3, 3))


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 16, 9, 7), (24, 16, 3, 3), {"stride": 2, "padding": 1}),
        ((2, 6, 9, 7), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
        ((2, 16, 8, 7), (12, 8, 3, 2), {"groups": 2, "dilation": 2}),
        ((1, 3, 5, 5), (4, 3, 1, 1), {}),
    ],
)
def test_conv_backward(x: Any, w: Any, options: dict[str, Any]) -> None:
    compare(gradients(lambda a, b, c: F.conv2d(a, b, c, **options)), rand(*x), rand(*w) / 5, rand(w[0], seed=1), scale=10)


def test_conv_backward_other_forms() -> None:
    transposed = gradients(lambda a, b, c: F.conv_transpose2d(a, b, c, stride=2, padding=1, groups=2))
    compare(transposed, rand(2, 12, 5, 4), rand(12, 9, 3, 3) / 5, rand(18), scale=10)
    compare(gradients(lambda a, b: F.conv1d(a, b, padding=1)), rand(2, 8, 11), rand(9, 8, 3) / 5, scale=10)
    frozen = rand(4, 3, 3, 3).to("webgpu")
    x = rand(1, 3, 5, 5).to("webgpu").requires_grad_()
    F.conv2d(x, frozen).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda d: F.conv2d(torch.ones(1, 3, 5, 5, device=d), torch.ones(4, 2, 3, 3, device=d)), r"\[4, 2, 3, 3\]"),
        (
            lambda d: F.conv2d(torch.ones(1, 3, 5, 5, device=d), torch.ones(4, 3, 7, 3, device=d)),
            "Kernel size can't be",
        ),
        (
            lambda d: F.conv2d(torch.ones(1, 3, 5, 5, device=d), torch.ones(4, 3, 1, 1, device=d).half()),
            "should be the same",
        ),
        (lambda d: F.max_pool2d(torch.ones(1, 3, 5, 5, device=d), 9), "max_pool2d.*too small"),
        (lambda d: F.max_pool2d(torch.ones(1, 3, 5, 5, device=d), 2, padding=2), "pad should be at most half"),
        (
            lambda d: F.pad(torch.ones(1, 3, 5, 5, device=d), (5, 0, 0, 0), mode="reflect"),
            "reflection_pad2d: Padding size",
        ),
        (
            lambda d: F.batch_norm(torch.ones(2, 3, 5, device=d), torch.ones(4, device=d), torch.ones(4, device=d)),
            "running_mean",
        ),
    ],
)
def test_errors(f: Callable[[str], Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        f("webgpu")


# ---------------------------------------------------------------------------------------------------- pooling

POOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max dilated": lambda x: F.max_pool2d(x, (3, 2), 2, 1, 2, ceil_mode=True, return_indices=True),
    "max 1d": lambda x: F.max_pool1d(x[0], 3, 2, 1, return_indices=True),
    "max 3d": lambda x: F.max_pool3d(x, 2, return_indices=True),
    "max unbatched": lambda x: F.max_pool2d(x[0], 2),
    "max permuted": lambda x: F.max_pool2d(x.permute(1, 0, 3, 2), 2),
    "max backward": gradients(lambda x: F.max_pool2d(x, 3, 2, 1)),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average unpadded": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "average divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=7),
    "average 1d": lambda x: F.avg_pool1d(x[0], 3, 2),
    "average 3d": lambda x: F.avg_pool3d(x, 2),
    "average backward": gradients(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (5, 4)),
    "adaptive one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive larger": lambda x: F.adaptive_avg_pool2d(x, (17, 13)),
    "adaptive 1d": lambda x: F.adaptive_avg_pool1d(x[0], 4),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (5, 4), return_indices=True),
    "adaptive backward": gradients(lambda x: F.adaptive_avg_pool2d(x, (5, 4))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POOLS)
def test_pool(name: str, dtype: torch.dtype) -> None:
    compare(POOLS[name], rand(2, 3, 13, 11), dtype=dtype)


def test_max_pool_special_values() -> None:
    x = rand(2, 3, 13, 11)
    x[0, 0, 4, 4:6] = float("nan")
    x[1, 1] = -float("inf")
    values, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    got, at = F.max_pool2d(x.to("webgpu"), 3, 2, 1, return_indices=True)
    assert torch.equal(at.cpu(), indices)
    torch.testing.assert_close(got.cpu(), values, equal_nan=True, rtol=0, atol=0)
    whole = torch.arange(48).reshape(1, 3, 4, 4) * (1 << 40)
    assert torch.equal(F.max_pool2d(whole.to("webgpu"), 2).cpu(), F.max_pool2d(whole, 2))


# ---------------------------------------------------------------------------------------------------- padding

PADS: dict[str, Callable[[torch.Tensor], Any]] = {
    "constant": lambda x: F.pad(x, (1, 2, -1, 3), value=2.5),
    "constant all": lambda x: F.pad(x, (1, 0, 0, 1, 2, 0, 0, 1)),
    "cut": lambda x: F.pad(x, (-3, -2)),
    "permuted": lambda x: F.pad(x.transpose(1, 3)[:, 1:], (1, 1)),
    "reflect": lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"),
    "reflect 1d": lambda x: F.pad(x[0], (4, 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (13, 2, 3, 1), mode="replicate"),
    "replicate 1d": lambda x: F.pad(x[0], (1, 2), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 2, 3, 1), mode="circular"),
    "empty": lambda x: F.pad(x[:0], (1, 2)),
    "empty filled": lambda x: F.pad(x[:, :, :0], (0, 0, 1, 2), value=3.0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PADS)
def test_pad(name: str, dtype: torch.dtype) -> None:
    compare(PADS[name], rand(2, 3, 7, 5), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_pad_integers(dtype: torch.dtype) -> None:
    compare(lambda x: F.pad(x, (1, 2, 0, 1), value=1), torch.arange(15).reshape(3, 5).to(dtype))


# ---------------------------------------------------------------------------------------------------- resampling

RESAMPLES: dict[str, Callable[[torch.Tensor], Any]] = {
    "nearest 1d": lambda x: F.interpolate(x[0], 23),
    "nearest 3d": lambda x: F.interpolate(x[None], scale_factor=2),
    "linear 1d": lambda x: F.interpolate(x[0], 23, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], (2, 9, 23), mode="trilinear", align_corners=True),
    "one row": lambda x: F.interpolate(x[:, :, :1], (4, 6), mode="bilinear"),
    "permuted": lambda x: F.interpolate(x.transpose(2, 3), (4, 6), mode="bicubic"),
    "empty": lambda x: F.interpolate(x[:0], (4, 6), mode="bicubic"),
}
for _mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
    _options: list[dict[str, Any]] = [{}]
    if _mode.startswith("bi"):
        _options += [{"align_corners": True}, {"antialias": True}]
    for _option in _options:
        for _to in ({"size": (7, 17)}, {"size": (26, 3)}, {"scale_factor": (1.7, 0.6)}):
            RESAMPLES[f"{_mode} {_option or ''} {_to}"] = partial(F.interpolate, mode=_mode, **_option, **_to)


@pytest.mark.parametrize("name", RESAMPLES)
def test_resample(name: str) -> None:
    compare(RESAMPLES[name], rand(2, 3, 13, 11), scale=3)


@pytest.mark.parametrize("to", [{"size": (7, 17)}, {"size": (26, 1)}, {"scale_factor": (1.7, 0.6)}])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resample_backward(mode: str, to: dict[str, Any]) -> None:
    for aligned in (None, True) if mode.startswith("bi") else (None,):
        compare(gradients(partial(F.interpolate, mode=mode, align_corners=aligned, **to)), rand(2, 3, 13, 11), scale=10)
    if mode == "bilinear":
        compare(gradients(lambda x: F.interpolate(x, scale_factor=3, mode="linear")), rand(2, 3, 11), scale=10)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_resample_half(mode: str, dtype: torch.dtype) -> None:
    compare(lambda x: F.interpolate(x, scale_factor=2, mode=mode), rand(1, 3, 7, 5), dtype=dtype)


def test_upsample_bytes() -> None:
    compare(lambda x: F.interpolate(x, scale_factor=2), torch.arange(24, dtype=torch.uint8).reshape(1, 2, 4, 3))


# ---------------------------------------------------------------------------------------------------- normalisation


def batch_norm(training: bool, affine: bool = True) -> Callable[..., Any]:
    """Batch norm that also returns the running statistics, updated twice."""

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
        mean, var = mean.clone(), var.abs() + 0.5
        for momentum in (0.1, 0.3):
            y = F.batch_norm(x, mean, var, w if affine else None, b if affine else None, training, momentum, 1e-5)
        return [y, mean, var]

    return run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 7, 9), (7, 5), (3, 5, 301), (2, 5, 3, 2, 4)])
def test_batch_norm(shape: tuple[int, ...], training: bool, dtype: torch.dtype) -> None:
    parameters = [rand(5, seed=i) for i in range(4)]
    compare(batch_norm(training), rand(*shape) * 2 + 3, *parameters, dtype=dtype, scale=4)
    compare(batch_norm(training, affine=False), rand(*shape), *parameters, dtype=dtype, scale=4)


def test_batch_norm_layouts() -> None:
    parameters = [rand(5, seed=i) for i in range(4)]
    for change in (
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x[:, :, 1:, ::2],
        lambda x: x.transpose(2, 3),
    ):
        for training in (False, True):
            compare(lambda x, *p, t=training, c=change: batch_norm(t)(c(x), *p), rand(2, 5, 7, 9), *parameters, scale=4)


def test_batch_norm_mixed_dtypes() -> None:
    x, p = rand(4, 5, 6).half(), [rand(5, seed=i).abs() for i in range(4)]
    expected = F.batch_norm(x.double(), p[2].double(), p[3].double(), p[0].double(), p[1].double())
    mean, var, weight, bias = (p[i].to("webgpu") for i in (2, 3, 0, 1))
    got = F.batch_norm(x.to("webgpu"), mean, var, weight, bias)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.cpu().double(), expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_backward(training: bool) -> None:
    mean, var = rand(5, seed=2), rand(5, seed=3).abs() + 0.5

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean.to(x), var.to(x), w, b, training).sin()

    compare(gradients(f), rand(2, 5, 7, 9), rand(5), rand(5, seed=1), scale=20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_group_norm(dtype: torch.dtype) -> None:
    x, w, b = rand(2, 12, 7, 5) + 2, rand(12), rand(12, seed=1)
    compare(lambda a, c, d: F.group_norm(a, 4, c, d), x, w, b, dtype=dtype, scale=4)
    compare(lambda a: F.group_norm(a.transpose(2, 3), 3), x, dtype=dtype, scale=4)
    compare(lambda a: F.group_norm(a[:0], 3), x, dtype=dtype)
    compare(lambda a: F.instance_norm(a), x, dtype=dtype, scale=4)


def test_group_norm_backward() -> None:
    f = gradients(lambda a, c, d: F.group_norm(a, 4, c, d).sin())
    compare(f, rand(2, 12, 7, 5), rand(12), rand(12, seed=1), scale=20)


def test_growing_shapes_compile_nothing_new() -> None:
    from torch_webgpu.recipe import _pipelines

    def run(n: int) -> None:
        x, w = rand(1, 16, n, n + 1).to("webgpu"), rand(16, 16, 3, 3).to("webgpu")
        y = F.max_pool2d(F.conv2d(x, w, padding=1), 2)
        F.group_norm(F.interpolate(F.pad(y, (1, 1)), scale_factor=2, mode="bilinear"), 4)

    run(7)
    before = len(_pipelines)
    for n in (9, 12, 15):
        run(n)
    assert len(_pipelines) == before
