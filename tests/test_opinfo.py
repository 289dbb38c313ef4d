"""PyTorch's own samples (OpInfo) of every op that has lowerings, forward, against PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

import torch_webgpu  # noqa: F401 - registers the lowerings
from torch_webgpu.registry import lowered

SAMPLES = 4  # an op and dtype, evenly spread over PyTorch's list
DTYPES = (torch.float32, torch.int64, torch.float16)
TOLERANCES = {torch.float32: (2e-5, 2e-5), torch.float16: (4e-3, 4e-3), torch.bfloat16: (2e-2, 2e-2)}
DEVICE = "webgpu"

# Ops of PyTorch whose name differs from that of the lowering that does their work.
_COMPOSED = (
    "addbmm",
    "addr",
    "all",
    "argwhere",
    "block_diag",
    "broadcast_tensors",
    "bincount",
    "bucketize",
    "cdist",
    "chunk",
    "clone",
    "column_stack",
    "contiguous",
    "corrcoef",
    "count_nonzero",
    "cov",
    "cross",
    "diag",
    "diag_embed",
    "diff",
    "dstack",
    "einsum",
    "expand",
    "eye",
    "full_like",
    "histc",
    "hstack",
    "inner",
    "isclose",
    "linalg.cross",
    "linalg.multi_dot",
    "linalg.norm",
    "linalg.vecdot",
    "linalg.vector_norm",
    "logsumexp",
    "masked_scatter",
    "masked_select",
    "matmul",
    "meshgrid",
    "nanmedian",
    "movedim",
    "nansum",
    "narrow",
    "new_full",
    "new_ones",
    "new_zeros",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.avg_pool2d",
    "nn.functional.binary_cross_entropy_with_logits",
    "nn.functional.celu",
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.cosine_similarity",
    "nn.functional.cross_entropy",
    "nn.functional.embedding",
    "nn.functional.glu",
    "nn.functional.group_norm",
    "nn.functional.hardswish",
    "nn.functional.interpolate",
    "nn.functional.l1_loss",
    "nn.functional.layer_norm",
    "nn.functional.linear",
    "nn.functional.logsigmoid",
    "nn.functional.max_pool2d",
    "nn.functional.mse_loss",
    "nn.functional.nll_loss",
    "nn.functional.normalize",
    "nn.functional.one_hot",
    "nn.functional.pad",
    "nn.functional.pixel_shuffle",
    "nn.functional.prelu",
    "nn.functional.relu6",
    "nn.functional.rms_norm",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.selu",
    "nn.functional.smooth_l1_loss",
    "nn.functional.softmin",
    "nn.functional.softsign",
    "nn.functional.tanhshrink",
    "nn.functional.unfold",
    "nonzero",
    "norm",
    "ones_like",
    "outer",
    "permute",
    "positive",
    "rad2deg",
    "ravel",
    "repeat",
    "repeat_interleave",
    "reshape",
    "rot90",
    "scatter_reduce",
    "select_scatter",
    "slice_scatter",
    "softmax",
    "log_softmax",
    "special.erfcx",
    "special.log_ndtr",
    "split",
    "squeeze",
    "stack",
    "std",
    "std_mean",
    "take",
    "take_along_dim",
    "tensor_split",
    "tensordot",
    "tile",
    "trace",
    "transpose",
    "true_divide",
    "unbind",
    "unflatten",
    "unfold",
    "unique",
    "unsqueeze",
    "var",
    "var_mean",
    "view",
    "vstack",
    "where",
    "xlogy",
    "zeros_like",
)

# Where a result of the device differs from the CPU's on purpose. Each entry must differ: a test fails where one does not.
_STATISTICS = "the saved statistics of half-precision inputs are float32, as they are on CUDA"
_INTEGERS = "integers are refused, as on CUDA; the CPU has a kernel"
_HOST = "PyTorch wants the split points on the CPU whatever device the tensor is on"
KNOWN: dict[tuple[str, torch.dtype], str] = {
    ("native_group_norm", torch.float16): _STATISTICS,
    ("native_layer_norm", torch.float16): _STATISTICS,
    ("native_batch_norm", torch.float16): _STATISTICS,
    ("_native_batch_norm_legit", torch.float16): _STATISTICS,
    ("_batch_norm_with_update", torch.float16): _STATISTICS,
    ("nn.functional.avg_pool2d", torch.int64): _INTEGERS,
    ("nn.functional.avg_pool3d", torch.int64): _INTEGERS,
    ("nn.functional.conv1d", torch.int64): _INTEGERS,
    ("nn.functional.conv2d", torch.int64): _INTEGERS,
    ("native_dropout_backward", torch.int64): "gradients of integers do not exist; the result is float32",
    ("tensor_split", torch.float32): _HOST,
    ("tensor_split", torch.int64): _HOST,
    ("tensor_split", torch.float16): _HOST,
}
# Ops that accept some input which the CPU refuses.
PERMISSIVE: dict[str, str] = {
    "amax": "more than 64 dimensions are no trouble",
    "amin": "more than 64 dimensions are no trouble",
    "nn.functional.adaptive_max_pool2d": "an empty output size stands for the input's",
}
_CREATE = {"arange", "linspace", "eye", "full", "logspace"}
_TIES = {"sort", "topk", "kthvalue", "median"}  # the index of one of several equal elements is anyone's choice


def _chosen() -> Iterator[tuple[OpInfo, torch.dtype]]:
    names = {name.split(".")[0].rstrip("_") for name in lowered()}
    random = {"bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform"}
    for info in op_db:
        aten = {info.name, info.name.removeprefix("special.").removeprefix("nn.functional."), info.aten_name or ""}
        if info.name in random or not (aten & names or info.name in _COMPOSED):
            continue
        for dtype in DTYPES:
            if dtype in info.dtypes:
                yield info, dtype


CASES = list(_chosen())


def _label(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def _spread(samples: list[SampleInput]) -> list[SampleInput]:
    if len(samples) <= SAMPLES:
        return samples
    return [samples[i * (len(samples) - 1) // (SAMPLES - 1)] for i in range(SAMPLES)]


def _moved(value: Any) -> Any:
    return tree_map(lambda t: t.detach().to(DEVICE) if isinstance(t, torch.Tensor) else t, value)


def _supported(value: Any) -> bool:
    wide = (torch.float64, torch.complex64, torch.complex128)
    return not any(
        (isinstance(t, torch.Tensor) and t.dtype in wide) or (isinstance(t, torch.dtype) and t in wide)
        for t in tree_flatten(value)[0]
    )


def compare(got: Any, want: Any, what: str) -> None:
    """Asserts equal structure, dtype, shape and values of (nested) results."""
    have, expected = tree_flatten(got)[0], tree_flatten(want)[0]
    assert len(have) == len(expected), what
    for g, w in zip(have, expected, strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w, what
            continue
        assert g.device.type == DEVICE, f"{what}: result on {g.device}"
        rtol, atol = TOLERANCES.get(w.dtype, (0.0, 0.0))
        torch.testing.assert_close(g.cpu(), w, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}\n{m}")


def _run(info: OpInfo, dtype: torch.dtype) -> None:
    samples = _spread(list(info.sample_inputs("cpu", dtype, requires_grad=False)))
    assert samples
    for sample in samples:
        values = (sample.input, list(sample.args), sample.kwargs)
        if not _supported(values) or sample.kwargs.get("dropout_p"):
            continue
        kwargs = {**sample.kwargs}
        moved_input, moved_args, moved_kwargs = _moved(values)
        if "device" in kwargs or info.name in _CREATE:
            kwargs["device"], moved_kwargs["device"] = "cpu", DEVICE
        what = f"{_label(info)}({sample.summary()})"
        want = info.op(sample.input, *sample.args, **kwargs)
        if not _supported(want):
            continue
        got = info.op(moved_input, *moved_args, **moved_kwargs)
        if info.name in _TIES and not isinstance(want, torch.Tensor):
            got, want = got[0], want[0]
        compare(got, want, what)


@pytest.mark.parametrize(("info", "dtype"), CASES, ids=[f"{_label(i)}-{str(d).removeprefix('torch.')}" for i, d in CASES])
@pytest.mark.filterwarnings("ignore")
def test_samples(info: OpInfo, dtype: torch.dtype) -> None:
    reason = KNOWN.get((_label(info), dtype))
    torch.manual_seed(0)
    if reason is None:
        _run(info, dtype)
        return
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        _run(info, dtype)


ERRORS = list({_label(i): i for i, _ in CASES if i.error_inputs_func is not None}.values())


@pytest.mark.parametrize("info", ERRORS, ids=[_label(i) for i in ERRORS])
@pytest.mark.filterwarnings("ignore")
def test_errors(info: OpInfo) -> None:
    """What PyTorch refuses is refused with the same type of exception, at the latest when the device is waited for."""
    for error in info.error_inputs("cpu"):
        sample = error.sample_input
        values = (sample.input, list(sample.args), sample.kwargs)
        if not _supported(values) or "out" in sample.kwargs:  # moved one by one, they share no memory any more
            continue
        moved_input, moved_args, moved_kwargs = _moved(values)
        if "device" in moved_kwargs:
            moved_kwargs["device"] = DEVICE
        try:
            info.op(sample.input, *sample.args, **sample.kwargs)
            continue  # an error of other devices only
        except Exception as e:
            expected = type(e)
        try:
            info.op(moved_input, *moved_args, **moved_kwargs)
            torch.webgpu.synchronize()  # type: ignore[attr-defined]
        except Exception as e:
            assert isinstance(e, expected), f"{_label(info)}({sample.summary()}): {type(e).__name__}: {e}"
            continue
        assert _label(info) in PERMISSIVE, f"{_label(info)}({sample.summary()}) must raise {expected}"
