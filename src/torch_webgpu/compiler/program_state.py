"""What tracing a program depends on, as a digest: the objects it reaches, and the code that was traced.

Dynamo watches the same with guards, but those belong to a process. Here everything that can be reached from some objects is
described: attributes, containers, classes with their methods' bytecode, tensors' metadata; and for functions that are known
to be traced what the names in their code mean. Two equal digests are then of programs that trace to the same graph. What
cannot be described is no program that is known again.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import hashlib
import logging
import operator
import os
import pathlib
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace, _Ops

_HEAP_TYPE = 1 << 9
_NUMBERS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    types.NoneType,
    types.EllipsisType,
    types.NotImplementedType,
)
_TORCH_NAMES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo)
_BY_TEXT = (*_NUMBERS, *_TORCH_NAMES, re.Pattern, pathlib.PurePath, types.GenericAlias, types.UnionType, OpOverload,
            OpOverloadPacket, HigherOrderOperator)  # fmt: skip
#: Not of influence on what is traced.
_BY_TYPE = (type(os.environ), logging.Logger, threading.local, type(threading.Lock()), type(threading.RLock()), weakref.ref,
            types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
            types.MethodDescriptorType, types.ClassMethodDescriptorType)  # fmt: skip
_NO_MEMBERS = frozenset((
    "__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "__abstractmethods__", "__signature__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__parameters__", "__orig_bases__",
    "__type_params__", "__firstlineno__", "__static_attributes__",
    "__annotate__", "__annotate_func__", "__annotations_cache__",
))  # fmt: skip


_NOTES = ("_webgpu_", "_dynamo_", "_torchdynamo_wrapper_id")  # this package's and Dynamo's own notes on objects


_SEQUENCES = (list, collections.deque)  # those that can change


class UndescribableError(Exception):
    """Something whose state cannot be told."""


class ProgramState:
    """A description of objects.

    Attributes:
        digest: of all that was found.
        tensors: where each distinct tensor lies, in the order of the walk: a container and a key of it.
    """

    def __init__(self, roots: Sequence[Any], traced: Collection[str] = (), ignored: Collection[str] = ()) -> None:
        """
        Args:
            roots: objects.
            traced: hashes of code (``code_hash``) whose names are followed too.
            ignored: attributes that nothing traced reads, of whatever object.

        Raises:
            UndescribableError: naming what is in the way.
        """
        self.tensors: list[tuple[Any, Any]] = []
        self._places: dict[int, int] = {}  # of tensors, by identity
        self._traced = frozenset(traced)
        self._numbers: dict[int, int] = {}
        self._opaque: set[int] = set()  # identities of what has no description
        self._kept: list[Any] = []  # lest an identity is used twice
        self._watched: list[tuple[Any, tuple[Any, ...]]] = []
        self._objects: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
        self._scopes: list[tuple[dict[str, Any], list[str], list[Any]]] = []
        self._ignored = frozenset(ignored)
        self._parts: list[str] = []
        self._followed: set[tuple[int, frozenset[str]]] = set()
        self._all(roots)
        self.digest = hashlib.sha256("\n".join(self._parts).encode()).hexdigest()
        self._parts, self._numbers = [], {}

    def place(self, tensor: torch.Tensor) -> int | None:
        """Index in ``tensors``; None for a tensor that was not found."""
        return self._places.get(id(tensor))

    def intact(self) -> bool:
        """Whether every container, object, class and name still holds what it held (quick: a walk is not)."""
        for container, values in self._watched:
            if not _same(container if isinstance(container, _SEQUENCES) else container.values(), values):
                return False
        for attributes, values in self._objects:
            if not _same([v for k, v in attributes.items() if not self._skipped(k)], values):
                return False
        return all(_same([scope.get(n) for n in names], values) for scope, names, values in self._scopes)

    def _skipped(self, attribute: Any) -> bool:
        return attribute in self._ignored or (isinstance(attribute, str) and attribute.startswith(_NOTES))

    # ------------------------------------------------------------------------------------------------ values

    def _put(self, *texts: object) -> None:
        self._parts.append(" ".join(map(str, texts)))

    def _walk(self, value: Any) -> None:
        kind = type(value)
        if kind in _NUMBERS or isinstance(value, _BY_TEXT):
            self._put(kind.__name__, repr(value) if kind in _NUMBERS else repr(str(value)))
            return
        known = self._numbers.get(id(value))
        if known is not None:
            if id(value) in self._opaque:
                raise UndescribableError(f"an object of {kind}, met again")
            self._put("#", known)
            return
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        describe = next((how for kinds, how in _DESCRIBED if isinstance(value, kinds)), ProgramState._object)
        try:
            describe(self, value)
        except UndescribableError:
            self._opaque.add(id(value))
            raise

    def _leniently(self, value: Any) -> None:
        """What is not traced as far as it can be told."""
        try:
            self._walk(value)
        except UndescribableError:
            self._put("and so on")

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._walk(value)

    def _mapping(self, mapping: Any) -> None:
        if isinstance(mapping, dict):
            self._watched.append((mapping, tuple(mapping.values())))
        self._items(mapping, mapping)

    def _attributes(self, attributes: dict[str, Any], watch: bool = True) -> None:
        found = {k: v for k, v in attributes.items() if not self._skipped(k)}
        if watch:
            self._objects.append((attributes, tuple(found.values())))
        self._items(attributes, found)

    def _items(self, container: Any, items: Any) -> None:
        self._put("dict", len(items))
        for key, value in items.items():
            self._walk(key)
            self._held(container, key, value)

    def _sequence(self, values: Any) -> None:
        if isinstance(values, _SEQUENCES):
            self._watched.append((values, tuple(values)))
        self._put("sequence", type(values).__name__, len(values))
        for i, value in enumerate(values):
            self._held(values, i, value)

    def _held(self, container: Any, key: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor) and id(value) not in self._places:
            self._places[id(value)] = len(self.tensors)
            self.tensors.append((container, key))
        self._walk(value)

    def _set(self, values: Any) -> None:
        named = {_name_of(v): v for v in values}
        if None in named or len(named) < len(values):
            raise UndescribableError(f"a set of objects: {str(values)[:80]}")
        self._put("set", len(named))
        for name in sorted(named):  # type: ignore[type-var]
            self._walk(named[name])

    def _tensor(self, t: torch.Tensor) -> None:
        if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout != torch.strided or t.is_conj() or t.is_neg():
            raise UndescribableError(f"a tensor of {type(t)}")
        sizes = list(t.shape), list(t.stride())  # where its storage lies and who shares it is the plan's matter
        self._put("tensor", type(t).__name__, t.dtype, t.device, *sizes, t.requires_grad, t.is_leaf, t.is_inference())
        self._attributes(vars(t), watch=False)  # tracing makes notes there

    def _object(self, value: Any) -> None:
        kind = type(value)
        state = getattr(value, "__dict__", None)
        slots = [n for c in kind.__mro__ for n in _slots(c) if n not in ("__dict__", "__weakref__")]
        plain = isinstance(value, (dict, list, tuple, set, frozenset, collections.deque))
        if not isinstance(state, dict) and not slots and not plain and not kind.__flags__ & _HEAP_TYPE:
            raise UndescribableError(f"an object of {kind}")
        self._put("object")
        self._walk(kind)
        if isinstance(value, dict):
            self._mapping(value)
        elif isinstance(value, (set, frozenset)):
            self._set(value)
        elif plain:
            self._sequence(value)
        if isinstance(state, dict):
            self._attributes(state)
        for name in slots:
            if hasattr(value, name):
                self._put(name)
                self._walk(getattr(value, name))

    # ------------------------------------------------------------------------------------------------ code

    def _type(self, kind: type) -> None:
        self._put("type", kind.__module__, kind.__qualname__)
        if not kind.__flags__ & _HEAP_TYPE or _root(kind.__module__) in sys.stdlib_module_names:
            return
        self._all(kind.__bases__)
        if type(kind) is not type:
            self._walk(type(kind))
        self._watched.append((vars(kind), tuple(vars(kind).values())))
        for name, value in sorted(vars(kind).items()):
            if name in _NO_MEMBERS or name.startswith("_abc_"):
                continue
            self._put(name)
            (self._leniently if _root(kind.__module__) == "torch" else self._walk)(value)

    def _function(self, function: types.FunctionType) -> None:
        code = code_hash(function.__code__)
        self._put("function", function.__module__, function.__qualname__, code)
        walk = self._walk if code in self._traced else self._leniently
        walk(function.__defaults__)
        walk(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:
                self._put("empty")
                continue
            walk(contents)
        walk({name: value for name, value in vars(function).items() if not self._skipped(name)})
        if code in self._traced:
            names = _names_in(function.__code__)
            self._names(function.__globals__, names)
            package = str(function.__globals__.get("__package__") or "")
            for name in sorted(names):  # of modules that the function imports itself
                for base in ("", package, package.rpartition(".")[0]):
                    imported = sys.modules.get(f"{base}.{name}" if base else name)
                    if imported is not None:
                        self._follow(imported, name, names)

    def _names(self, scope: dict[str, Any], names: frozenset[str]) -> None:
        """What names mean in a module; those of modules that it names are looked up there too."""
        known = sorted(names & scope.keys())
        if _root(scope.get("__name__")) != "torch":
            self._scopes.append((scope, known, [scope[n] for n in known]))
        for name in known:
            value = scope[name]
            self._put(name)
            self._walk(value)
            if isinstance(value, types.ModuleType):
                self._follow(value, name, names)

    def _follow(self, module: types.ModuleType, name: str, names: frozenset[str]) -> None:
        # Attributes of the first appear as they are used, and an op is known by its name; Python's own modules are known by
        # its version, and have the process's state (``sys.argv``).
        if isinstance(module, (_Ops, _OpNamespace)) or _root(module.__name__) in sys.stdlib_module_names:
            return
        names = names - {name}
        if (id(module), names) not in self._followed:
            self._followed.add((id(module), names))
            self._put("in", module.__name__)
            self._names(vars(module), names)

    def _module(self, module: types.ModuleType) -> None:
        self._put("module", module.__name__)

    def _method(self, method: types.MethodType) -> None:
        self._all((method.__func__, method.__self__))

    def _builtin(self, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        self._put("builtin", function.__module__, function.__qualname__)
        if not isinstance(owner, (types.ModuleType, type, types.NoneType)):
            self._walk(type(owner))

    def _wrapped(self, value: Any) -> None:
        """``property``, ``classmethod``, ``partial`` and the like."""
        self._put(type(value).__name__)
        names = ("fget", "fset", "fdel", "func", "args", "keywords", "__func__", "__wrapped__")
        self._all(getattr(value, n) for n in names if hasattr(value, n))

    def _variable(self, variable: Any) -> None:
        self._put("context variable", variable.name)
        self._walk(variable.get(None))

    def _member(self, value: Any) -> None:
        self._put("member", type(value).__name__, value.name)

    def _by_type(self, value: Any) -> None:
        self._put("a", type(value).__name__)

    def _typing(self, value: Any) -> None:
        self._put("typing", value)


_DESCRIBED: list[tuple[Any, Callable[[ProgramState, Any], None]]] = [
    (torch.Tensor, ProgramState._tensor),
    (enum.Enum, ProgramState._member),
    (type, ProgramState._type),
    (types.FunctionType, ProgramState._function),
    (types.MethodType, ProgramState._method),
    ((types.BuiltinFunctionType, types.MethodWrapperType), ProgramState._builtin),
    (types.ModuleType, ProgramState._module),
    ((property, staticmethod, classmethod, functools.partial, functools.cached_property, functools._lru_cache_wrapper),
     ProgramState._wrapped),
    (contextvars.ContextVar, ProgramState._variable),
    (_BY_TYPE, ProgramState._by_type),
    ((typing._Final, typing.TypeVar), ProgramState._typing),  # type: ignore[attr-defined]
]  # fmt: skip
for _kinds, _how in (((dict, collections.OrderedDict, types.MappingProxyType), ProgramState._mapping),
                     ((list, tuple, collections.deque), ProgramState._sequence),
                     ((set, frozenset), ProgramState._set)):  # fmt: skip
    _DESCRIBED.append((_kinds, _how))


def _root(module: str | None) -> str:
    return (module or "").split(".")[0]


def _name_of(value: Any) -> str | None:
    """What a set's members are sorted by."""
    if isinstance(value, (type, types.FunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__name__} {value!s}" if isinstance(value, (*_BY_TEXT, enum.Enum)) else None


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{kind.__name__.lstrip('_')}"
    return tuple(private + n if n.startswith("__") and not n.endswith("__") else n for n in names)


def _same(now: Any, before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


_hashes: dict[int, tuple[types.CodeType, str]] = {}


def code_hash(code: types.CodeType) -> str:
    """A hash of what code does, whatever its name and place."""
    known = _hashes.get(id(code))
    if known is None:
        facts = [
            code.co_code, [_constant(c) for c in code.co_consts], code.co_names, code.co_varnames, code.co_freevars,
            code.co_cellvars, code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
            getattr(code, "co_exceptiontable", b""),
        ]  # fmt: skip
        known = _hashes[id(code)] = (code, hashlib.sha256(repr(facts).encode()).hexdigest())
    return known[1]


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return code_hash(value)
    if isinstance(value, frozenset):
        return "frozenset", sorted(f"{type(v).__name__} {v!r}" for v in value)
    if isinstance(value, tuple):
        return [_constant(v) for v in value]
    return type(value).__name__, repr(value)


@functools.cache
def _names_in(code: types.CodeType) -> frozenset[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names_in(constant)
    return frozenset(found)
