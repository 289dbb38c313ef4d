"""Where PyTorch assumes devices of its own list: what works, and what says why not."""

from __future__ import annotations

import importlib
import multiprocessing
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from child import output_of
from torch import nn


@pytest.mark.parametrize("ids", [None, [0], [0, 1]])
def test_data_parallel_says_what_to_use(ids: list[int] | None) -> None:
    module, x = nn.Linear(2, 2).to("webgpu"), torch.ones(2, 2, device="webgpu")
    for call in (
        lambda: nn.DataParallel(module, device_ids=ids),
        lambda: nn.parallel.data_parallel(module, x, ids),
    ):
        with pytest.raises(RuntimeError, match=r"one device per process.*DistributedDataParallel"):
            call()


def test_data_parallel_says_so_beside_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch takes for the machine's device says nothing of where the module is."""
    parallel = importlib.import_module("torch.nn.parallel.data_parallel")
    monkeypatch.setattr(parallel, "_get_available_device_type", lambda: "cuda")
    with pytest.raises(RuntimeError, match="one device per process"):
        nn.DataParallel(nn.Linear(2, 2).to("webgpu"))
    with pytest.raises(RuntimeError, match="one device per process"):
        nn.parallel.data_parallel(nn.BatchNorm1d(2, affine=False).to("webgpu"), torch.ones(2, 2))


def test_dlpack_says_that_there_is_no_address() -> None:
    """Reading a capsule with an offset crashed."""
    x = torch.arange(8.0, device="webgpu")[1:]
    for export in (torch.to_dlpack, torch.utils.dlpack.to_dlpack, lambda t: t.__dlpack__()):
        with pytest.raises(BufferError, match=r"no address; export tensor.cpu\(\)"):
            export(x)
    with pytest.raises((BufferError, ValueError)):
        torch.from_dlpack(x)
    host = torch.arange(3.0)
    assert torch.from_dlpack(host).tolist() == torch.from_dlpack(torch.to_dlpack(host)).tolist() == [0, 1, 2]


def test_tensors_do_not_go_to_other_processes() -> None:
    for t in (torch.ones(2, device="webgpu"), nn.Parameter(torch.ones(2, device="webgpu"))):
        with pytest.raises(RuntimeError, match=r"send tensor.cpu\(\)"):
            ForkingPickler.dumps(t)
        with pytest.raises(RuntimeError, match=r"send tensor.cpu\(\)"):
            multiprocessing.get_context("spawn").Process(target=print, args=(t,)).start()
    assert len(ForkingPickler.dumps(torch.ones(2))) > 0
    assert torch.ones(2, device="webgpu").share_memory_().tolist() == [1, 1]  # as with CUDA, nothing to do


def test_the_default_compiler_says_which_to_use() -> None:
    x = torch.ones(2, device="webgpu")
    with pytest.raises(Exception, match=r'use torch.compile\(..., backend="webgpu"\)'):
        torch.compile(lambda t: t * 2 + 1)(x)
    assert torch.compile(lambda t: t * 2 + 1, backend="webgpu")(x).tolist() == [3, 3]
    with pytest.raises(AttributeError, match=r"torch\.webgpu"):
        _ = torch.webgpu.no_such_thing  # type: ignore[attr-defined]


def test_inductor_keeps_the_code_of_other_devices() -> None:
    """In PyTorch 2.11 what was registered first for this device kept the overrides of CUDA out."""
    code = (
        "import torch, torch_webgpu; torch.webgpu.Scheduling\n"
        "from torch._inductor.codegen.common import get_device_op_overrides as of\n"
        "print(of('cuda').device_guard(0))"
    )
    assert "torch.cuda" in output_of(code)
