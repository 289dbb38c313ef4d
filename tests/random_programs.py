"""Random programs against the CPU, eager and compiled; what fails is shrunk to a few lines and printed as a test.

``make nightly`` runs many fresh ones (``python tests/random_programs.py --count 100000``), test_random_programs.py a few.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from graph_layers import LAYERS
from graph_ops import COMPUTE, WRITES, draw_graph
from graph_rare import EAGER, RARE
from graphs import DEVICE, Builder, Drawn, Layout, overlaps_itself
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import _get_qualified_name

MOST_OPS = 12


def compare(drawn: Drawn, got: list[torch.Tensor], bases: list[torch.Tensor], when: str) -> None:
    """Results and the inputs' storages against the reference."""
    for what, have, want in (("result", got, drawn.results), ("storage", bases, drawn.after)):
        for i, (x, y) in enumerate(zip(have, want, strict=True)):
            assert x.device.type == DEVICE and x.dtype == y.dtype and x.shape == y.shape, (when, what, i, x, y)
            error = drawn.error_of(y)
            mine, reference = x.detach().cpu(), y.detach()
            same = (
                torch.allclose(mine.double(), reference.double(), rtol=0.0, atol=error)
                if error
                else torch.equal(mine, reference)
            )
            assert same, f"{what} {i} {when}: {x}, not {y} ± {error}"


def check_aliases(drawn: Drawn, got: list[torch.Tensor], bases: list[torch.Tensor]) -> None:
    """Writes every result in turn, here and there: whatever shares memory with it must change alike."""
    for i, (mine, reference) in enumerate(zip(got, drawn.results, strict=True)):
        if overlaps_itself(reference):
            continue
        for t in (mine, reference):
            t.neg_() if t.dtype.is_floating_point else t.bitwise_not_()
        compare(drawn, got, bases, f"after result {i} was written")


def compile_graph(drawn: Drawn, inputs: list[torch.Tensor]) -> Any:
    """The backend as Dynamo calls it."""
    from torch_webgpu.compiler import backend

    with tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True))):
        return backend.webgpu(drawn.module, inputs)


def draw_program(choose: Callable[[Sequence[Any]], Any], compiled: bool) -> Drawn:
    """A program of a few ops; ``compiled`` leaves out those whose sizes depend on numbers."""
    kinds = (*COMPUTE, *RARE, *RARE, *LAYERS, *WRITES)
    return draw_graph(Builder(choose), kinds if compiled else (*kinds, *EAGER, *EAGER), MOST_OPS)


def check_program(drawn: Drawn, compiled: bool) -> None:
    """Runs a program on the device, and compares with what it did on the CPU."""
    bases, inputs = drawn.inputs()
    run = compile_graph(drawn, inputs) if compiled else drawn.module
    with torch.no_grad():
        got = list(run(*inputs))
    compare(drawn, got, bases, "compiled" if compiled else "eager")
    check_aliases(drawn, got, bases)


# ------------------------------------------------------------------------------------------------------- as a test


def check_written(program: Callable[..., Any], bases: list[torch.Tensor], layouts: list[Layout], error: float = 0.0) -> None:
    """A program as ``as_test`` prints it: on the device as on the CPU, with all that it writes."""
    found = []
    for device in ("cpu", DEVICE):
        drawn = Drawn(fx.GraphModule(torch.nn.Module(), fx.Graph()), bases, layouts, [], [], {})
        stored, inputs = drawn.inputs(device)
        found.append([t.cpu() for t in (*program(device, *inputs), *stored)])
    for mine, reference in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, reference, rtol=0.0, atol=error)


def as_test(drawn: Drawn, name: str = "found") -> str:
    """Python source of a test that runs the program."""
    lines, results = [], ""

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
            parts = ", ".join(text(v) for v in value)
            return f"[{parts}]" if isinstance(value, list) else f"({parts}{',' * (len(value) == 1)})"
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        if isinstance(value, slice):
            return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
        return repr(value)

    for node in drawn.module.graph.nodes:
        arguments = [text(a) for a in node.args] + [
            f"{k}={'device' if k == 'device' else text(v)}" for k, v in node.kwargs.items()
        ]
        if node.op == "call_method":
            lines.append(f"{node.name} = {arguments[0]}.{node.target}({', '.join(arguments[1:])})")
        elif node.op == "call_function":
            target = _get_qualified_name(node.target).replace("_operator.", "operator.")
            lines.append(f"{node.name} = {target}({', '.join(arguments)})")
        elif node.op == "output":
            results = text(node.args[0])
    inputs = [node.name for node in drawn.module.graph.nodes if node.op == "placeholder"]
    bases = ", ".join(f"torch.tensor({b.tolist()}, dtype={b.dtype})" for b in drawn.bases)
    layouts = ", ".join(f"Layout({x.base}, {x.sizes}, {x.strides}, {x.offset})" for x in drawn.layouts)
    body = "\n        ".join([*lines, f"return {results}"])
    error = max(drawn.errors.values(), default=0.0)
    taken = ", ".join(f"{name}: Any" for name in inputs)
    head = f"def test_{name}() -> None:\n    def program(device: Any, {taken}) -> Any:\n        {body}\n\n"
    return f"{head}    check_written(program, [{bases}], [{layouts}], {error!r})\n"


# ------------------------------------------------------------------------------------------------------- many of them


def hunt(count: int, seed: int, compiled: bool, on_program: Callable[[], None] = lambda: None) -> str | None:
    """Runs ``count`` programs that Hypothesis draws; returns the smallest that fails as a test with its error, or None."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    last: list[Drawn] = []

    @seeded(seed)
    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False,
    )  # fmt: skip
    @given(st.data())
    def one(data: Any) -> None:
        drawn = draw_program(lambda options: data.draw(st.sampled_from(options)), compiled)
        last[:] = [drawn]
        on_program()
        check_program(drawn, compiled)

    try:
        one()
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1].name
        what = f"seed {seed}, {'compiled' if compiled else 'eager'}: {type(e).__name__} ({where}): {str(e)[:1500]}"
        return "".join(f"# {line}\n" for line in what.splitlines()) + as_test(last[0])
    return None


def forget(pipelines: bool) -> None:
    """Lets go of what is kept for programs that come again: these do not."""
    from torch_webgpu import _C, recipe
    from torch_webgpu.compiler import backend

    _C.clear_recipes()
    backend.compiled.clear()
    if pipelines:
        recipe.clear_pipelines()
    torch.webgpu.empty_cache()  # type: ignore[attr-defined]


def in_parts(arguments: argparse.Namespace) -> bool:
    """Runs the programs in one process after the other; whether any failed."""
    failures, start, starts = 0, time.monotonic(), range(0, arguments.count, arguments.part)
    for first in starts:
        left = arguments.seconds - (time.monotonic() - start)
        if left <= 0:
            break
        options = {
            "count": min(arguments.part, arguments.count - first),
            "seed": arguments.seed + first // arguments.batch,
            **{name: getattr(arguments, name) for name in ("batch", "compiled", "part")},
            "seconds": left,
        }
        command = [sys.executable, *(f"-W{w}" for w in sys.warnoptions), __file__]
        done = subprocess.run([*command, *(f"--{name}={value}" for name, value in options.items())])
        failures += done.returncode if done.returncode >= 0 else 1
        print(f"{first + options['count']} of {arguments.count} programs, {failures} batches failed", flush=True)
    return failures > 0


def main() -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parser = argparse.ArgumentParser(description="Random programs on webgpu against the CPU.")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch; the next has the next")
    parser.add_argument("--batch", type=int, default=250, help="programs between which Hypothesis starts anew")
    parser.add_argument("--compiled", type=int, default=8, help="one batch in so many is compiled; 0 for none")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--part", type=int, default=2000, help="programs a process runs: PyTorch's and drivers' caches grow")
    arguments = parser.parse_args()
    if arguments.count > arguments.part:
        raise SystemExit(in_parts(arguments))
    console, failures, done, start = Console(), 0, 0, time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("programs", total=arguments.count, failed=0)
        for batch in range(-(-arguments.count // arguments.batch)):
            if time.monotonic() - start > arguments.seconds:
                break
            compiled = bool(arguments.compiled) and batch % arguments.compiled == arguments.compiled - 1
            size = min(arguments.batch, arguments.count - done)
            found = hunt(size, arguments.seed + batch, compiled)
            if found:
                failures += 1
                console.print(found, markup=False, highlight=False, soft_wrap=True)
            done += size
            progress.update(task, completed=done, failed=failures)
            if not console.is_terminal and batch % 10 == 9:
                console.print(f"{done} programs, {failures} of {batch + 1} batches failed, {time.monotonic() - start:.0f} s")
            forget(pipelines=batch % 40 == 39)
    console.print(f"{done} programs, {failures} of {batch + 1} batches failed, {time.monotonic() - start:.0f} s")
    raise SystemExit(min(failures, 100))


if __name__ == "__main__":
    main()
