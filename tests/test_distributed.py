"""torch.distributed between two processes that torchrun starts: collectives, DDP, FSDP and DTensor through Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_webgpu import device_module

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))
import data_parallel  # noqa: E402
import tensor_parallel  # noqa: E402

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two processes of distributed_job.py found."""
    folder = tmp_path_factory.mktemp("distributed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(HERE / "distributed_job.py"), str(folder)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_WEBGPU_FALLBACK": "error",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Time stats are currently only collected" not in done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_collectives_are_those_of_the_cpu(reports: list[dict[str, Any]]) -> None:
    assert [r["collectives"] for r in reports] == [31, 31]  # each compared in its process


def test_errors_say_what_to_do(reports: list[dict[str, Any]]) -> None:
    for errors in (r["errors"] for r in reports):
        assert errors["dtype"].startswith("TypeError: c10d::allreduce_ of webgpu tensors (torch.int16[3]): ")
        assert "does not carry this dtype; convert" in errors["dtype"]
        assert errors["backend"].startswith("RuntimeError: c10d::allreduce_: webgpu tensors travel through the host")
        assert 'init_process_group("gloo")' in errors["backend"]


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_two_processes_have_the_losses_of_one(reports: list[dict[str, Any]], how: str) -> None:
    alone = list(data_parallel.train(8, 24))
    assert alone[-1] < 0.8 * alone[0]
    for report in reports:
        assert report[how] == pytest.approx(alone, rel=1e-5)


def test_sharded_parameters(reports: list[dict[str, Any]]) -> None:
    for shared, whole in (r["sharded"] for r in reports):
        assert shared == pytest.approx(whole, rel=1e-5)
        assert whole[-1] < whole[0]


def test_tensor_parallel_layers(reports: list[dict[str, Any]]) -> None:
    for found in (r["tensor_parallel"] for r in reports):
        assert found["error"] < 1e-5
        layers = tensor_parallel.LAYERS * 12 * tensor_parallel.WIDTH**2
        assert found["own"] < found["weights"] - 0.49 * layers


def test_a_launched_process_names_its_device_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="one device per process"):
        device_module.set_device(1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    device_module.set_device(1)
    with pytest.raises(RuntimeError, match="one device per process"):
        device_module.set_device(2)
