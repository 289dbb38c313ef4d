"""The verdict on one op × dtype."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map

import torch_webgpu
from torch_webgpu import decompositions

from . import samples, special
from .compare import mismatch, widened
from .moving import DEVICE, Call, Mover, moved, too_wide
from .pairs import BY_NAME, Pair, dtypes_of, infos, seed

VERDICTS = ("native", "decomposed", "fell back", "refused", "wrong", "hung", "crashed")  # from best to worst
_REFUSAL = re.compile(r"not implemented for|webgpu has no|no \S+ tensors|only supports?|not supported")


@dataclass(frozen=True)
class Verdict:
    """What became of a pair: one of ``VERDICTS``, why, and the smallest call that shows it."""

    verdict: str
    reason: str = ""
    sample: str = ""


@dataclass(frozen=True)
class Depth:
    """How many samples of a pair are tried.

    Attributes:
        forward: plain calls, without the empty one.
        others: each of out=, in place, non-contiguous and gradients.
        edges: whether extremal values, broadcasts and errors are tried too.
    """

    forward: int = 8
    others: int = 3
    edges: bool = True


Finding = tuple[str, str, Call]  # "wrong" or "refused", the reason, the call


def judge(pair: Pair, depth: Depth = Depth()) -> Verdict:
    """Tries a pair; raises nothing that an op does."""
    name, dtype_name = pair
    info, dtype = infos()[name], BY_NAME[dtype_name]
    torch.manual_seed(seed(pair))
    backed, composed = _counts()
    findings, tried, refusals = [], 0, 0
    for attempt in _attempts(info, pair, dtype, depth):
        torch.manual_seed(seed(pair))
        finding = attempt()
        tried += attempt.func is _forward
        if finding is not None:
            refusals += finding[0] == "too wide"
            findings.append(finding)
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    wrong = [f for f in findings if f[0] == "wrong"]
    refused = [] if tried and refusals >= tried else [f for f in findings if f[0] == "refused"]
    if wrong or refused:
        kind, reason, call = min(wrong or refused, key=lambda f: f[2].size())
        return Verdict(kind, reason, str(call))
    if tried and refusals >= tried:
        return Verdict("refused", findings[0][1], str(findings[0][2]))
    if tried == 0:
        return Verdict("refused", f"not compared: {special.excused(*pair, 'forward')}")
    now_backed, now_composed = _counts()
    if fell := now_backed - backed:
        return Verdict("fell back", " ".join(sorted(key.removeprefix("aten::") for key in fell)))
    return Verdict("decomposed" if now_composed - composed else "native")


def _counts() -> tuple[Counter[str], Counter[str]]:
    return Counter(torch_webgpu.fallbacks()), Counter(decompositions.decomposed())


Attempt = partial["Finding | None"]


def _attempts(info: OpInfo, pair: Pair, dtype: torch.dtype, depth: Depth) -> Iterator[Attempt]:
    name = pair[0]
    calls = samples.forward(info, dtype, depth.forward)
    plain = [c for c in calls if not c.broadcasts] or calls
    some = samples.spread(plain, depth.others)
    everything = [*calls, *samples.strided(some)]
    if depth.edges and name not in special.UNINITIALISED and not _random(name, calls):
        everything += samples.elementwise(info, dtype) or list(samples.sprinkled(plain))
    for call in everything:
        if special.excused(*pair, call.what) is None:
            yield partial(_forward, name, info.op, call)
    updating = info.inplace_variant
    if updating is not None and special.excused(*pair, "in place") is None:
        for call in samples.spread(calls, depth.others):
            yield partial(_in_place, name, updating, call)
    if info.supports_out and name not in special.UNINITIALISED and special.excused(*pair, "out=") is None:
        for call in some:
            yield partial(_out, name, info.op, call, gaps=True)
            yield partial(_out, name, info.op, call, gaps=False)
    if dtype is torch.float32 and info.supports_autograd and special.excused(*pair, "gradients") is None:
        for call in samples.differentiable(info, depth.others):
            yield partial(_gradients, name, info.op, call)
    if depth.edges and info.error_inputs_func is not None and pair[1] == dtypes_of(info)[0]:
        for error in info.error_inputs("cpu") if special.excused(*pair, "error") is None else ():
            s = error.sample_input
            yield partial(_error, name, info.op, Call("error", s.input, tuple(s.args), dict(s.kwargs)))


def _random(name: str, calls: list[Call]) -> bool:
    return any(special.is_random(name, c) for c in calls)


def _copied(call: Call) -> Call:
    """Tensors of its own, of the same layout; ops may write their inputs."""

    def copy(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.layout != torch.strided or t.requires_grad:
            return t
        whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).clone()  # type: ignore[call-overload]
        return whole.as_strided(t.shape, t.stride(), t.storage_offset())

    return call.mapped(copy)


def _on_device(call: Call, run: Callable[[], Any]) -> tuple[Any, Finding | None]:
    """The result on the device, or what its exception is taken for."""
    try:
        result = run()
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
        return result, None
    except Exception as e:
        text = f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')}"[:160]
        named = isinstance(e, (TypeError, NotImplementedError)) or _REFUSAL.search(str(e)) is not None
        return None, ("refused" if named else "wrong", text, call)


def _forward(name: str, op: Callable[..., Any], call: Call) -> Finding | None:
    there = moved_or_none(name, call)
    again = _copied(call)
    try:
        want = call.run(op)
    except Exception:
        return None  # no sample of this op after all
    if there is None or (too_wide(want) and name not in special.OTHER_DTYPE):
        return _must_refuse(call, op)
    got, finding = _on_device(call, lambda: there.run(op))
    if finding is not None:
        return finding
    different = mismatch(name, call, got, want, lambda: widened(again).run(op))
    return ("wrong", different, call) if different else None


def moved_or_none(name: str, call: Call) -> Call | None:
    """The call on the device; None where its numbers do not exist there."""
    return None if too_wide(call.values) else moved(call, name not in special.ON_CPU)


def _must_refuse(call: Call, op: Callable[..., Any]) -> Finding | None:
    """float64 and complex numbers raise a TypeError (or NotImplementedError)."""
    try:
        got = moved(call).run(op)
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
    except (TypeError, NotImplementedError) as e:
        return "too wide", f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')}"[:160], call
    except Exception as e:
        return "wrong", f"float64 or complex: {type(e).__name__}: {next(iter(str(e).splitlines()), '')}"[:160], call
    tensors = [t for t in tree_flatten(got)[0] if isinstance(t, torch.Tensor)]
    if tensors and not too_wide(got):
        return "wrong", f"{tensors[0].dtype} where the CPU's result is wider", call
    return None


def _in_place(name: str, op: Callable[..., Any], call: Call) -> Finding | None:
    if too_wide(call.values) or not isinstance(call.input, torch.Tensor):
        return None
    call = _copied(call)
    call.what = "in place"
    there = moved(call)
    again = _copied(call)
    try:
        want = call.run(op)
    except Exception as e:
        if not call.broadcasts:
            return None
        got, finding = _on_device(call, lambda: there.run(op))
        return ("wrong", f"must raise {type(e).__name__}", call) if finding is None else None
    if call.input.shape != again.input.shape:
        return None  # the CPU has a few that resize
    got, finding = _on_device(call, lambda: there.run(op))
    if finding is not None:
        return finding
    if isinstance(want, torch.Tensor) and got.data_ptr() != there.input.data_ptr():
        return "wrong", "the result is not the input", call
    different = mismatch(name, again, there.input, call.input)
    if different:  # half precision: compare with float64 as the plain form does
        again.what = "in place"
        different = mismatch(name, again, there.input, call.input, lambda: widened(again).run(op))
    return ("wrong", different, again) if different else None


def _out(name: str, op: Callable[..., Any], call: Call, gaps: bool) -> Finding | None:
    """``out=`` tensors with gaps, which must stay as they are, or of no size, which grow."""
    if too_wide(call.values):
        return None
    there = moved(call)
    again = _copied(call)
    call = Call("out= with gaps" if gaps else "out= empty", *call.values)
    try:
        want = call.run(op)
        if too_wide(want) or not all(isinstance(t, torch.Tensor) for t in tree_flatten(want)[0]):
            return None
        make = _gapped if gaps else (lambda t: torch.empty(0, dtype=t.dtype))
        here = tree_map(make, want)
        call.run(op, out=here)
    except Exception:
        return None
    outs = tree_map(Mover(), tree_map(make, want))
    _, finding = _on_device(call, lambda: there.run(op, out=outs))
    if finding is not None:
        return finding
    different = mismatch(name, again, outs, want, lambda: widened(again).run(op))
    if different:  # rounded twice, by the CPU's out= form too
        different = mismatch(name, again, outs, here) and different
    if not different and gaps and any(_written(t) and not _written(u) for t, u in _pairs(outs, here)):
        different = "elements beside out= were written"
    return ("wrong", different, call) if different else None


def _gapped(like: torch.Tensor) -> torch.Tensor:
    return torch.ones((*like.shape, 2), dtype=like.dtype).select(-1, 0)


def _pairs(outs: Any, here: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tree_flatten(outs)[0], tree_flatten(here)[0], strict=True))


def _written(out: torch.Tensor) -> bool:
    """Whether an element in a gap has another value than it was made with."""
    if out.numel() == 0:
        return False
    between = out.as_strided(out.shape, out.stride(), out.storage_offset() + 1)
    return bool((between.cpu() != torch.ones((), dtype=out.dtype)).any())


def _gradients(name: str, op: Callable[..., Any], call: Call) -> Finding | None:
    there = moved_or_none(name, call)
    if there is None:
        return None
    try:
        want, cotangents = _grad(op, call, None)
        if want is None or too_wide(want):
            return None
    except Exception:
        return None
    result, finding = _on_device(call, lambda: _grad(op, there, cotangents))
    if finding is not None:
        return finding
    if special.is_random(name, call):
        return None

    def exact() -> Any:
        wide = call.mapped(lambda t: _wide_leaf(t) if isinstance(t, torch.Tensor) else t)
        return _grad(op, wide, [c.double() for c in cotangents])[0]

    different = mismatch(name, call, result[0], want, exact)
    return ("wrong", f"gradient: {different}", call) if different else None


def _wide_leaf(t: torch.Tensor) -> torch.Tensor:
    return t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t


def _grad(op: Callable[..., Any], call: Call, cotangents: Any) -> tuple[Any, Any]:
    """Gradients of all inputs that want one, for given (or new) cotangents of the results."""
    results = tree_flatten(call.process(call.run(op)))[0]
    outs = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
    inputs = [t for t in call.tensors if t.requires_grad]
    if not outs or not inputs:
        return None, None
    if cotangents is None:
        cotangents = [torch.randn_like(t) for t in outs]
    given = [c.to(t.device).to(t.dtype) for c, t in zip(cotangents, outs, strict=True)]
    found = torch.autograd.grad(outs, inputs, given, allow_unused=True)
    return [f if f is not None else torch.zeros((), device=i.device) for f, i in zip(found, inputs, strict=True)], cotangents


def _error(name: str, op: Callable[..., Any], call: Call) -> Finding | None:
    """What the CPU refuses is refused with the same type of exception, at the latest when the device is waited for."""
    if too_wide(call.values) or any(t.device.type != "cpu" for t in call.tensors):
        return None
    there = moved(call)
    call.noted = str(call)
    try:
        call.run(op)
        return None  # an error of other devices only
    except Exception as e:
        expected, message = type(e), str(e)
    try:
        with torch.device(DEVICE):  # for functions of numbers alone, as arange
            there.run(op)
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
    except Exception as e:
        if isinstance(e, (expected, NotImplementedError, torch_webgpu.UnsupportedDTypeError)):
            return None
        return "wrong", f"{type(e).__name__} instead of {expected.__name__}: {message[:80]}", call
    if name in special.PERMISSIVE:
        return None
    return "wrong", f"must raise {expected.__name__}: {next(iter(message.splitlines()), '')[:100]}", call
