"""The fingerprint of a verifier: a sha256 of the code that decides a verdict, so that an edited reward is another one.

Code is taken as it was compiled, which is what runs: comments, formatting, docstrings and annotations do not count, and
a lambda, a notebook cell or a line typed at a prompt is as good as a file. Followed are the functions, classes and
values that the code names, closes over or imports, default arguments, and the state of callable objects and partials.
Modules that are installed, the standard library and Offleash itself are not followed: they count by name and version.
Of their objects only plain data is seen (numbers, text, collections, arrays, paths, patterns, dates, dataclasses).
"""

import argparse
import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePath
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.fingerprint import canonical_json

MAX_VALUES = 200_000
"""How many values are followed before it is too much to be a verifier."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)
_BY_TEXT = (PurePath, decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta)
_METHODS = (FunctionType, staticmethod, classmethod, property)
_HOLDERS = (argparse.Namespace, SimpleNamespace)
_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def verifier_fingerprint(function: Any) -> str:
    """Of a function, a class, a partial or a callable object. Raises ConfigError where there is no code to look at.

    >>> def lenient(completions, **columns):
    ...     return [float("4" in text) for text in completions]
    >>> def strict(completions, **columns):
    ...     return [float(text == "4") for text in completions]
    >>> verifier_fingerprint(lenient) == verifier_fingerprint(strict)
    False
    """
    return hashlib.sha256(canonical_json(_Walk(function).of(function)).encode()).hexdigest()


def is_installed(module_name: str) -> bool:
    """Whether a module comes with Python, a package or Offleash, rather than from the user."""
    top = module_name.partition(".")[0]
    if top == "__main__":  # whoever started it: a notebook's kernel and pytest are installed, and its cells are not
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if top == "offleash" or file is None:
        return top == "offleash" or top in sys.stdlib_module_names
    path = Path(file).resolve()  # a file of the user may have the name of one that comes with Python
    return not _INSTALLED.isdisjoint(path.parts) or any(folder in path.parents for folder in _STANDARD)


def _array_types() -> tuple[type, ...]:
    """Of numpy, if anybody has imported it: without it there is no array to look at."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray, numpy.generic)


class _Walk:
    """One walk over what can be reached from a verifier; what was seen before is named by its number."""

    def __init__(self, start: Any) -> None:
        self.start = start
        self.seen: dict[int, tuple[int, Any]] = {}  # the value itself too, or its id could be another's later
        self.count = 0

    def of(self, value: Any) -> Any:
        """A description of JSON values."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise ConfigError(
                f"{_name(self.start)} can reach more than {MAX_VALUES:,} values: too many for a fingerprint of the "
                "verifier. Give it a version=... of your own, and change that whenever a verdict could change"
            )
        if isinstance(value, _PLAIN):
            return [type(value).__name__, repr(value)]
        if id(value) in self.seen:
            return ["again", self.seen[id(value)][0]]
        self.seen[id(value)] = len(self.seen), value
        return self._described(value)

    def _described(self, value: Any) -> Any:
        for kind, describe in self._kinds():
            if isinstance(value, kind):
                return describe(value)
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # functools.cache, and what is like it
            return [_name(type(value)), self.of(wrapped)]
        return self._object(value)

    def _kinds(self) -> tuple[tuple[Any, Any], ...]:
        return (
            (FunctionType, self._function),
            (MethodType, lambda method: ["method", self.of(method.__func__), self.of(method.__self__)]),
            (functools.partial, lambda p: ["partial", self.of(p.func), self.of(p.args), self.of(p.keywords)]),
            (CodeType, self._code),
            (CellType, self._cell),
            (ModuleType, self._module),
            (enum.Enum, lambda member: ["enum", self.of(type(member)), member.name]),
            (type, self._class),
            ((staticmethod, classmethod), lambda method: [type(method).__name__, self.of(method.__func__)]),
            (property, lambda p: ["property", *(self.of(part) for part in (p.fget, p.fset, p.fdel))]),
            (re.Pattern, lambda pattern: ["pattern", repr(pattern.pattern), pattern.flags]),
            (_BY_TEXT, lambda value: [_name(type(value)), str(value)]),
            ((list, tuple), lambda items: [_name(type(items)), *map(self.of, items)]),
            ((set, frozenset), lambda items: ["set", *sorted(map(self._alone, items))]),
            (dict, lambda items: [_name(type(items)), *([self.of(k), self.of(v)] for k, v in items.items())]),
            (_array_types(), self._array),
        )

    def _alone(self, item: Any) -> str:
        """One item of a set, whose order changes from process to process: so without the numbers of this walk."""
        return canonical_json(_Walk(self.start).of(item))

    def _function(self, function: FunctionType) -> Any:
        module = function.__globals__.get("__name__", "")
        closed = [self.of(cell) for cell in function.__closure__ or ()]
        if is_installed(module):  # a decorator of a library may still hold a function of the user
            return ["installed", *_versioned(module), function.__qualname__, closed]
        defaults = [self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        named = [[*path, self.of(value)] for path, value in _referenced(function)]
        return ["function", self._code(function.__code__, function.__doc__), defaults, closed, named]

    def _code(self, code: CodeType, doc: str | None = None) -> Any:
        first, *rest = code.co_consts or (None,)
        constants = [None if first == doc else first, *rest]
        # By name and target: the numbers that instructions hold depend on how constants are ordered.
        steps = [[step.opname, step.arg if step.opcode in dis.hasconst else _target(step)] for step in _steps(code)]
        shape = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return [shape, list(code.co_varnames), steps, [self.of(value) for value in constants]]

    def _cell(self, cell: CellType) -> Any:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # not filled yet
            return ["empty"]

    def _module(self, module: ModuleType) -> Any:
        """As a value of its own, where the code does not say which of its members it uses."""
        if is_installed(module.__name__):
            return ["module", *_versioned(module.__name__)]
        members = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        return ["module", *([name, self.of(value)] for name, value in sorted(members.items()))]

    def _class(self, kind: type) -> Any:
        if is_installed(kind.__module__):
            return ["installed", *_versioned(kind.__module__), kind.__qualname__]
        # Of what Python and libraries add under names like __module__, only the methods are the user's.
        members = {name: v for name, v in vars(kind).items() if isinstance(v, _METHODS) or not name.startswith("__")}
        members = {name: value for name, value in members.items() if not name.startswith("_abc_")}
        fields = {name: str(annotation) for name, annotation in vars(kind).get("__annotations__", {}).items()}
        bases = [self.of(base) for base in kind.__bases__]
        return ["class", bases, fields, *([name, self.of(members[name])] for name in sorted(members))]

    def _array(self, value: Any) -> Any:
        array = sys.modules["numpy"].asarray(value)
        content = self.of(array.tolist()) if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
        return ["array", str(array.dtype), str(array.shape), content]

    def _object(self, value: Any) -> Any:
        kind = type(value)
        is_data = dataclasses.is_dataclass(value) or isinstance(value, _HOLDERS)
        if is_installed(kind.__module__) and not is_data:
            if callable(value) and not hasattr(value, "__dict__") and not is_installed(_module_of(value)):
                raise ConfigError(
                    f"{_name(value)} is compiled: there is no code to take a fingerprint of. Give it a version=... of "
                    "your own, and change that whenever a verdict could change"
                )
            identity = [getattr(value, name, None) for name in ("__module__", "__qualname__", "version")]
            return ["of", *_versioned(kind.__module__), kind.__qualname__, *map(str, identity)]
        slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
        state = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
        return ["object", self.of(kind), *([name, self.of(state[name])] for name in sorted(state))]


def _referenced(function: FunctionType) -> Iterator[tuple[list[str], Any]]:
    """(path, value) of the globals that a function's code names, of members of modules too, and of its imports."""
    found: dict[tuple[str, ...], Any] = {}
    for code in _codes(function.__code__):
        steps = _steps(code)
        for number, step in enumerate(steps):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in function.__globals__:
                path, value = _member(step.argval, function.__globals__[step.argval], steps[number + 1 :])
                found[path] = value
            elif step.opname == "IMPORT_NAME":
                found.update(_imported(function, steps, number))
    yield from ((list(path), value) for path, value in sorted(found.items(), key=lambda item: item[0]))


def _member(name: str, value: Any, following: list[dis.Instruction]) -> tuple[tuple[str, ...], Any]:
    """What `module.part.function` or `args.alpha` leads to, so that other members do not count."""
    path = [name]
    for step in following:
        if (
            not _has_members(value)
            or step.opname not in ("LOAD_ATTR", "LOAD_METHOD")
            or not hasattr(value, step.argval)
        ):
            break
        path.append(step.argval)
        value = getattr(value, step.argval)
    return tuple(path), value


def _has_members(value: Any) -> bool:
    """Whether it is a module of the user, parsed arguments or settings; an installed module counts as a whole."""
    if isinstance(value, ModuleType):
        return not is_installed(value.__name__)
    return isinstance(value, _HOLDERS) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _imported(function: FunctionType, steps: list[dis.Instruction], number: int) -> dict[tuple[str, ...], Any]:
    """What an import inside the function gives: the names it takes, or the module."""
    level = steps[number - 2].argval  # pushed before the names and the import itself
    name = "." * level + steps[number].argval if isinstance(level, int) else steps[number].argval
    try:
        module = import_module(importlib.util.resolve_name(name, function.__globals__.get("__package__")))
    except ImportError:
        return {("import", name): "absent"}
    taken = []
    for step in steps[number + 1 :]:
        if step.opname == "IMPORT_FROM":
            taken.append(step.argval)
        elif not step.opname.startswith("STORE"):
            break
    if not taken:
        return {("import", name): module}
    return {("import", name, part): getattr(module, part, None) for part in taken}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _steps(code: CodeType) -> list[dis.Instruction]:
    quiet = {"CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "RESUME"}
    return [step for step in dis.get_instructions(code) if step.opname not in quiet]


def _target(step: dis.Instruction) -> str | int | None:
    """An instruction's argument: names as they are, jumps by where they lead."""
    return step.argval if isinstance(step.argval, str) else step.arg


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _versioned(module_name: str) -> list[str]:
    version = getattr(sys.modules.get(module_name.partition(".")[0]), "__version__", "")
    return [module_name, str(version)]


def _module_of(value: Any) -> str:
    return str(getattr(value, "__module__", None) or getattr(type(value), "__module__", "builtins"))


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))
