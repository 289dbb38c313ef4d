"""Numbers and memory in WGSL: dtypes, casts, typed accessors over word buffers, the helper library.

Every storage buffer is an array of 32-bit words. An operand gets a load function (and a store function) that picks its
element out of the words, so that a kernel's body never mentions a dtype's storage. Arithmetic happens in four classes:
``f`` f32, ``i`` i32, ``l`` 64-bit integers as ``vec2<u32>``, ``b`` bool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import torch

from .errors import UnsupportedDTypeError

TEMPLATES = Path(__file__).parent / "kernels" / "templates"


@dataclass(frozen=True)
class DType:
    """A storage dtype.

    Attributes:
        code: c10's scalar type number.
        itemsize: bytes.
        cls: class of arithmetic: ``f``, ``i``, ``l`` or ``b``.
        rank: order within its class for type promotion.
    """

    name: str
    code: int
    itemsize: int
    cls: str
    rank: int
    torch: torch.dtype

    @property
    def per_word(self) -> int:
        """Elements in a 32-bit word; 1 for wider ones too."""
        return max(1, 4 // self.itemsize)

    @property
    def packed(self) -> bool:
        """Whether several elements share a word."""
        return self.itemsize < 4

    @property
    def is_float(self) -> bool:
        return self.cls == "f"

    def __hash__(self) -> int:
        return self.code


U8 = DType("uint8", 0, 1, "i", 0, torch.uint8)
I8 = DType("int8", 1, 1, "i", 1, torch.int8)
I16 = DType("int16", 2, 2, "i", 2, torch.int16)
I32 = DType("int32", 3, 4, "i", 3, torch.int32)
I64 = DType("int64", 4, 8, "l", 4, torch.int64)
F16 = DType("float16", 5, 2, "f", 0, torch.float16)
F32 = DType("float32", 6, 4, "f", 2, torch.float32)
BOOL = DType("bool", 11, 1, "b", 0, torch.bool)
BF16 = DType("bfloat16", 15, 2, "f", 1, torch.bfloat16)


class _ByCode(dict[int, DType]):
    """Dtypes by c10's scalar type number; others raise an error that says what to do."""

    _OTHERS = MappingProxyType({7: "float64", 8: "complex32", 9: "complex64", 10: "complex128"})

    def __missing__(self, code: int) -> NoReturn:
        name = self._OTHERS.get(code, f"c10 scalar type {code}")
        raise UnsupportedDTypeError(f"webgpu has no {name} tensors: WGSL has no such numbers; use float32, or the CPU")


DTYPES: dict[int, DType] = _ByCode({d.code: d for d in (U8, I8, I16, I32, I64, F16, F32, BOOL, BF16)})
BY_TORCH = {d.torch: d for d in DTYPES.values()}
_OTHER_CODES = {torch.float64: 7, torch.complex32: 8, torch.complex64: 9, torch.complex128: 10}


def scalar_type(dtype: torch.dtype) -> int:
    """c10's scalar type number of a dtype."""
    known = BY_TORCH.get(dtype)
    return known.code if known is not None else _OTHER_CODES.get(dtype, -1)


TYPE = {"f": "f32", "i": "i32", "l": "vec2<u32>", "b": "bool"}
ZERO = {"f": "0.0", "i": "0", "l": "vec2<u32>(0u)", "b": "false"}

_CASTS = {
    "fi": "f2i({})",
    "fl": "f2l({})",
    "fb": "truth({})",
    "if": "f32({})",
    "il": "i2l({})",
    "ib": "({} != 0)",
    "lf": "l2f({})",
    "li": "bitcast<i32>(({}).x)",
    "lb": "any({} != vec2<u32>(0u))",
    "bf": "select(0.0, 1.0, {})",
    "bi": "select(0, 1, {})",
    "bl": "vec2<u32>(select(0u, 1u, {}), 0u)",
}


def cast(expr: str, source: str, target: str) -> str:
    """The expression converted between classes, with C's semantics."""
    return expr if source == target else _CASTS[source + target].format(expr)


def promote(a: DType, b: DType) -> DType:
    """PyTorch's promotion of two dtypes of equal priority."""
    if a is b:
        return a
    if a.cls == "b" or b.cls == "b":
        return b if a.cls == "b" else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return F32
    if U8 in (a, b):
        other = a if b is U8 else b
        return I16 if other is I8 else other
    return a if a.rank > b.rank else b


def word(index: int) -> str:
    """Expression of a word of the uniform (u32)."""
    return f"P[{index >> 2}].{'xyzw'[index & 3]}"


def _pick(dtype: DType, w: str, j: str) -> str:
    """Value of element ``j`` out of the word ``w`` that holds it."""
    if dtype is F32:
        return f"bitcast<f32>({w})"
    if dtype is I32:
        return f"bitcast<i32>({w})"
    shift = f"{dtype.itemsize * 8}u * ({j} & {dtype.per_word - 1}u)"
    bits = f"extractBits({w}, {shift}, {dtype.itemsize * 8}u)"
    if dtype is F16:
        return f"f16value({bits})"
    if dtype is BF16:
        return f"bitcast<f32>({bits} << 16u)"
    if dtype is U8:
        return f"bitcast<i32>({bits})"
    if dtype is BOOL:
        return f"({bits} != 0u)"
    return f"extractBits(bitcast<i32>({w}), {shift}, {dtype.itemsize * 8}u)"


def bits_of(dtype: DType, value: str) -> str:
    """The element's bits (u32, low end) of a value of the dtype's class; not for int64."""
    if dtype is F32:
        return f"bitcast<u32>({value})"
    if dtype is F16:
        return f"f16bits({value})"
    if dtype is BF16:
        return f"bf16bits({value})"
    if dtype is BOOL:
        return f"select(0u, 1u, {value})"
    if dtype is I32:
        return f"bitcast<u32>({value})"
    return f"(bitcast<u32>({value}) & {(1 << dtype.itemsize * 8) - 1}u)"


@dataclass(frozen=True)
class Operand:
    """A tensor as a kernel sees it.

    Attributes:
        name: suffix of its functions: ``ld_<name>(i)``, ``st_<name>(i, value)``, ``w_<name>(i)`` (raw word).
        slot: the binding that holds it.
        mode: ``r`` read; ``w`` element stores (shared words are updated atomically); ``p`` stores of whole words;
            ``+``, ``*``, ``>``, ``<`` atomic sum, product, maximum, minimum, ``acc_<name>(i, value)``; ``a`` the error
            buffer, ``fail_<name>(id, value, size)``; ``v`` read four words at once too, ``v4_<name>(i)``: words 4i to 4i+3
            from the first element, which must lie at a multiple of 16 bytes; ``V`` that, and stored so,
            ``sv4_<name>(i, words)``.
    """

    name: str
    dtype: DType
    slot: int
    mode: str


def _accessors(op: Operand, index: int, element: str) -> str:
    d, k, off = op.dtype, op.slot, word(index)
    get = {
        "u32": lambda i: f"B{k}[{i}]",
        "atomic<u32>": lambda i: f"atomicLoad(&B{k}[{i}])",
        "vec4<u32>": lambda i: f"B{k}[({i}) >> 2u][({i}) & 3u]",
    }[element]
    atomic = element == "atomic<u32>"
    put = (lambda i, v: f"atomicStore(&B{k}[{i}], {v});") if atomic else (lambda i, v: f"B{k}[{i}] = {v};")
    lines = [f"fn w_{op.name}(i: u32) -> u32 {{ return {get('i')}; }}"]
    if d is I64:
        load = f"let j = 2u * ({off} + i); return vec2<u32>({get('j')}, {get('j + 1u')});"
    elif d.packed:
        load = f"let j = {off} + i; let w = {get(f'j / {d.per_word}u')}; return {_pick(d, 'w', 'j')};"
    else:
        load = f"return {_pick(d, get(f'{off} + i'), '')};"
    lines.append(f"fn ld_{op.name}(i: u32) -> {TYPE[d.cls]} {{ {load} }}")
    if op.mode == "w":
        if d is I64:
            store = f"let j = 2u * ({off} + i); {put('j', 'v.x')} {put('j + 1u', 'v.y')}"
        elif d.packed:
            mask = (1 << d.itemsize * 8) - 1
            store = (
                f"let j = {off} + i; let s = {d.itemsize * 8}u * (j & {d.per_word - 1}u); let at = j / {d.per_word}u; "
                f"atomicAnd(&B{k}[at], ~({mask}u << s)); atomicOr(&B{k}[at], {bits_of(d, 'v')} << s);"
            )
        else:
            store = put(f"{off} + i", bits_of(d, "v"))
        lines.append(f"fn st_{op.name}(i: u32, v: {TYPE[d.cls]}) {{ {store} }}")
    elif op.mode == "a":
        lines.append(
            f"fn fail_{op.name}(id: u32, value: vec2<u32>, size: u32) {{ {put('1u', 'value.x')} {put('2u', 'value.y')} "
            f"{put('3u', 'size')} {put('0u', 'id')} }}"
        )
    elif op.mode in ACCUMULATING:
        lines.append(_accumulator(op, off))
    elif op.mode == "p":
        lines.append(f"fn st_{op.name}(i: u32, v: u32) {{ {put(f'{off} / {d.per_word}u + i', 'v')} }}")
    elif op.mode in "vV":
        start = f"{off} * {d.itemsize // 4}u" if d.itemsize >= 4 else f"{off} / {d.per_word}u"
        if element == "vec4<u32>":
            quad = f"return B{k}[({start}) / 4u + i];"
        else:
            parts = ", ".join(get(f"j + {c}u") for c in range(4))
            quad = f"let j = {start} + 4u * i; return vec4<u32>({parts});"
        lines.append(f"fn v4_{op.name}(i: u32) -> vec4<u32> {{ {quad} }}")
        if op.mode == "V":
            stores = " ".join(put(f"j + {c}u", f"v[{c}]") for c in range(4))
            whole = f"B{k}[({start}) / 4u + i] = v;" if element == "vec4<u32>" else f"let j = {start} + 4u * i; {stores}"
            lines.append(f"fn sv4_{op.name}(i: u32, v: vec4<u32>) {{ {whole} }}")
    return "\n".join(lines)


ACCUMULATING = "+*><"
_COMBINED = {
    "f": {"+": "({0} + {1})", "*": "({0} * {1})", ">": "fmaximum({0}, {1})", "<": "fminimum({0}, {1})"},
    "i": {"+": "({0} + {1})", "*": "({0} * {1})", ">": "max({0}, {1})", "<": "min({0}, {1})"},
    "b": {"+": "({0} || {1})", "*": "({0} && {1})", ">": "({0} || {1})", "<": "({0} && {1})"},
}


def _accumulator(op: Operand, off: str) -> str:
    """Atomic combination with an element; a compare-and-swap loop where WGSL has no such atomic."""
    d, k = op.dtype, op.slot
    if d is I64 and op.mode != "+":
        raise UnsupportedDTypeError("WGSL has no 64-bit atomics: only sums of int64 can be accumulated")
    head = f"fn acc_{op.name}(i: u32, v: {TYPE[d.cls]}) {{ "
    if d is I64:  # addition commutes, so the carry may arrive late
        return head + (
            f"let j = 2u * ({off} + i); let old = atomicAdd(&B{k}[j], v.x); "
            f"atomicAdd(&B{k}[j + 1u], v.y + select(0u, 1u, old + v.x < v.x)); }}"
        )
    if d is I32 and op.mode == "+":
        return head + f"atomicAdd(&B{k}[{off} + i], bitcast<u32>(v)); }}"
    total = _COMBINED[d.cls][op.mode].format(_pick(d, "old", "j"), "v")
    mask = (1 << d.itemsize * 8) - 1
    merged = bits_of(d, total)
    if d.packed:
        merged = f"(old & ~({mask}u << s)) | ({merged} << s)"
    return head + (
        f"let j = {off} + i; let s = {d.itemsize * 8}u * (j & {d.per_word - 1}u); let at = j / {d.per_word}u; "
        f"loop {{ let old = atomicLoad(&B{k}[at]); let r = atomicCompareExchangeWeak(&B{k}[at], old, {merged}); "
        "if (r.exchanged) { break; } } }"
    )


def written_slots(operands: Sequence[Operand], slots: int) -> tuple[bool, ...]:
    """For each binding, whether a kernel writes it."""
    return tuple(any(o.slot == k and o.mode not in "rv" for o in operands) for k in range(slots))


@cache
def _library() -> dict[str, str]:
    from .kernels.special import functions  # that package needs this module

    text = "\n".join((TEMPLATES / f"{name}.wgsl").read_text() for name in ("lib", "special", "polynomials"))
    parts = re.split(r"\n(?=(?:fn |var<private> |const |// ))", text)
    found = {}
    for part in parts:
        for match in re.finditer(r"(?:^|\n)(?:fn (\w+)|(?:var<private>|const) (\w+))", part):
            found[match[1] or match[2]] = part
    return functions() | found


def _with_library(code: str) -> str:
    library, chosen, todo = _library(), {}, [code]
    while todo:
        for name in set(re.findall(r"[A-Za-z_]\w*", todo.pop())):
            if name in library and name not in chosen:
                chosen[name] = library[name]
                todo.append(library[name])
    return "\n".join(dict.fromkeys(chosen[name] for name in library if name in chosen)) + "\n" + code


def uses_subgroups(code: str) -> bool:
    """Whether a module has subgroup operations; Dawn wants them enabled by a directive that wgpu-native does not know."""
    return re.search(r"\bsubgroup[A-Z_]", code) is not None


def assemble(operands: Sequence[Operand], slots: int, uniform_slots: int, body: str) -> str:
    """A whole WGSL module: bindings, accessors, the helpers used, and the body with its ``main``."""
    written = written_slots(operands, slots)
    elements = []
    for k in range(slots):
        here = [o for o in operands if o.slot == k]
        if any((o.mode == "w" and o.dtype.packed) or o.mode in "a" + ACCUMULATING for o in here):
            elements.append("atomic<u32>")
        else:
            elements.append("vec4<u32>" if all(o.mode in "vV" for o in here) else "u32")
    head = []
    for k in range(slots):
        access = "read_write" if written[k] else "read"
        head.append(f"@group(0) @binding({k}) var<storage, {access}> B{k}: array<{elements[k]}>;")
    head.append(f"@group(0) @binding({slots}) var<uniform> P: array<vec4<u32>, {uniform_slots * 16}>;")
    parts = [_accessors(op, i, elements[op.slot]) for i, op in enumerate(operands)]
    return "\n".join(head) + "\n" + _with_library("\n".join([*parts, body]))
