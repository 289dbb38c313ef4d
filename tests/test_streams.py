"""Streams and events: one queue orders everything."""

# torch.webgpu is made at run time.
# mypy: disable-error-code="attr-defined"
from __future__ import annotations

import time

import pytest
import torch
from child import output_of


def busy() -> torch.Tensor:
    """Work that the device has not finished when this returns."""
    x = torch.rand(256, 256, device="webgpu")
    for _ in range(20):
        x = x @ x / 100
    return x


def test_event_is_done_when_the_work_before_it_is() -> None:
    event = torch.Event("webgpu")
    assert event.query()  # never recorded
    event.synchronize()
    x = busy()
    event.record()
    event.wait()
    y = x + 1
    event.synchronize()
    assert event.query()
    assert torch.equal(y.cpu(), x.cpu() + 1)


def test_query_does_not_wait_and_becomes_true() -> None:
    event = torch.Event("webgpu")
    busy()
    event.record()
    deadline = time.monotonic() + 60
    while not event.query():
        assert time.monotonic() < deadline
    event.record()  # again, for newer work
    event.synchronize()
    assert event.query()


def test_stream_query() -> None:
    stream = torch.webgpu.current_stream()
    x = busy()
    deadline = time.monotonic() + 60
    while not stream.query():
        assert time.monotonic() < deadline
    assert stream.query()
    y = x + 1
    stream.synchronize()
    assert torch.equal(y.cpu(), x.cpu() + 1)


def test_elapsed_time_covers_the_work() -> None:
    first, second = (torch.Event("webgpu", enable_timing=True) for _ in range(2))
    busy().sum().item()  # compiled
    started = time.perf_counter()
    first.record()
    busy()
    second.record()
    second.synchronize()
    assert 0 < first.elapsed_time(second) <= (time.perf_counter() - started) * 1e3


def test_elapsed_time_needs_timing() -> None:
    timed, plain = torch.Event("webgpu", enable_timing=True), torch.Event("webgpu")
    plain.record()
    with pytest.raises((RuntimeError, ValueError)):
        plain.elapsed_time(timed)
    with pytest.raises((RuntimeError, ValueError)):
        timed.elapsed_time(torch.Event("webgpu", enable_timing=True))


def test_many_events_keep_nothing() -> None:
    busy()
    for _ in range(50):
        torch.webgpu.current_stream().record_event()  # forgotten before it is done
    torch.webgpu.synchronize()
    buffers = torch.webgpu.memory_stats()["buffers"]
    events = [torch.webgpu.current_stream().record_event() for _ in range(50)]
    for event in events:
        event.query()
    del events, event
    torch.webgpu.synchronize()
    assert torch.webgpu.memory_stats()["buffers"] == buffers


def test_streams_as_with_other_accelerators() -> None:
    x = torch.ones(8, device="webgpu")
    side = torch.webgpu.Stream()
    assert side == torch.webgpu.current_stream() == torch.webgpu.default_stream() == torch.accelerator.current_stream()
    side.wait_stream(torch.webgpu.current_stream())
    with torch.webgpu.stream(side):
        y = x + 1
    with side:
        z = y * 2
    x.record_stream(side)
    done = torch.webgpu.Event(enable_timing=True)
    done.record(side)
    torch.webgpu.current_stream().wait_event(done)
    torch.webgpu.set_stream(side)
    torch.accelerator.set_stream(side)
    assert z.tolist() == [4.0] * 8
    assert side.native_handle
    with pytest.raises(RuntimeError, match="webgpu stream"):
        torch.webgpu.set_stream(torch.Stream("cpu"))
    with pytest.raises(RuntimeError, match="between processes"):
        torch.webgpu.Event(interprocess=True)


def test_accelerator_memory() -> None:
    keep = torch.ones(1 << 20, device="webgpu")
    assert torch.accelerator.memory_allocated() >= keep.nbytes
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()
    if hasattr(torch.accelerator, "empty_host_cache"):
        torch.accelerator.empty_host_cache()
    if hasattr(torch.accelerator, "get_memory_info"):
        with pytest.raises(NotImplementedError, match="memory_allocated"):
            torch.accelerator.get_memory_info()


@pytest.mark.once
@pytest.mark.parametrize("implementation", ["wgpu", "dawn"])
def test_events_alive_at_exit(implementation: str) -> None:
    code = """
        import torch
        x = torch.ones(1000, device="webgpu")
        events = [torch.webgpu.current_stream().record_event() for _ in range(5)]
        print(events[0].query() in (True, False), torch.webgpu.current_stream().query() in (True, False))
    """
    assert output_of(code, TORCH_WEBGPU_IMPL=implementation) == "True True"
