"""What is looked at: every OpInfo × dtype that the CPU supports and WebGPU can hold."""

from __future__ import annotations

import zlib
from functools import cache

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

DEVICE = "webgpu"
DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
BY_NAME = {str(d).removeprefix("torch."): d for d in DTYPES}
Pair = tuple[str, str]  # label of the op, name of the dtype


def label(info: OpInfo) -> str:
    """PyTorch's name of an op, its variant after a dot."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


@cache
def infos() -> dict[str, OpInfo]:
    """Every op that the CPU has, by label."""
    return {label(info): info for info in op_db if info.dtypes}


def dtypes_of(info: OpInfo) -> list[str]:
    """Names of the dtypes looked at."""
    return [name for name, dtype in BY_NAME.items() if dtype in info.dtypes]


def all_pairs() -> list[Pair]:
    """Every pair, dtype by dtype, so that an interrupted run has seen all ops in the common dtypes."""
    order = ("float32", "int64", "bool", "float16", "bfloat16", "int32", "uint8", "int16", "int8")
    return [(name, dtype) for dtype in order for name, info in infos().items() if dtype in dtypes_of(info)]


def seed(pair: Pair) -> int:
    """The seed of a pair's samples: the same in every run, whatever ran before."""
    return zlib.crc32(" ".join(pair).encode())
