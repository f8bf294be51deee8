"""Names of things that can be plugged in: a key of a table, or the dotted path of your own class.

Finding your own class imports its module, which runs its code: a recipe that names one is to be trusted like a program.
What is found is called only if it is a class with the members that its kind needs, so that a recipe cannot call
`os:system`.
"""

import difflib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from offleash.eval.errors import ConfigError

WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text", NoneType: "null"}


_announce: ContextVar[Callable[[str, str], None] | None] = ContextVar("announce", default=None)


@contextmanager
def announced_imports(announce: Callable[[str, str], None]) -> Iterator[None]:
    """In this block, call `announce(kind, name)` before the module of something that is not ours is imported."""
    token = _announce.set(announce)
    try:
        yield
    finally:
        _announce.reset(token)


def find(kind: str, name: str, table: Mapping[str, str], members: Sequence[str]) -> Callable[..., Any]:
    """What `name` stands for: a key of `table`, whose values are "module:attribute", or such a path itself.

    The module is imported only now; one of your own may lie in the working directory, and must hold a class with these
    `members`. An unknown name is a ConfigError that suggests close ones.
    """
    check_name(kind, name, table)
    module_name, _, attribute = table.get(name, name).partition(":")
    is_ours = module_name.split(".")[0] == "offleash"
    if not is_ours and (announce := _announce.get()) is not None:
        announce(kind, name)
    here = str(Path.cwd())
    if added := here not in sys.path:
        sys.path.append(here)  # not for good: the path is what a verifier's sandbox shows
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error}") from error
    finally:
        if added:
            sys.path.remove(here)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(f"{kind} {name!r}: module {module_name} has no class {attribute!r}")
    if name not in table:
        _check_class(kind, name, factory, members)
    return factory


def check_name(kind: str, name: str, table: Collection[str]) -> None:
    """Raise ConfigError, suggesting close ones, for a name that is neither in the table nor a dotted path."""
    module_name, colon, _ = name.partition(":")
    if name not in table and (not colon or not module_name or module_name.startswith(".")):
        close = difflib.get_close_matches(name, table, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the names are: {', '.join(sorted(table))}"
        raise ConfigError(f"no {kind} is called {name!r}; {hint} (your own: my_module:MyClass)")


def check_known_keys(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise ConfigError naming every key that is not known, with the closest known one."""
    hints = []
    for key in sorted(set(given) - set(known)):
        close = difflib.get_close_matches(key, known, n=1)
        hints.append(f"{key} (did you mean {close[0]}?)" if close else key)
    if hints:
        raise ConfigError(f"unknown key{'s' if len(hints) > 1 else ''} {where}: {', '.join(hints)}")


def _check_class(kind: str, name: str, factory: Any, members: Sequence[str]) -> None:
    if not inspect.isclass(factory):
        raise ConfigError(
            f"{kind} {name!r} is a {type(factory).__name__}: it must be a class with {', '.join(members)}"
        )
    if lacking := [member for member in members if not callable(getattr(factory, member, None))]:
        raise ConfigError(f"{kind} {name!r} lacks {', '.join(lacking)}, which every {kind} has")


def build(kind: str, name: str, factory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `factory` after checking that it accepts the arguments."""
    check_arguments(kind, name, factory, *args, **kwargs)
    return factory(*args, **kwargs)


def check_arguments(kind: str, name: str, factory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Raise ConfigError, listing the accepted arguments, if the factory does not accept these."""
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError as error:
        accepted = ", ".join(list(inspect.signature(factory).parameters)[len(args) :]) or "none"
        raise ConfigError(f"{kind} {name!r}: {error}; its arguments are: {accepted}") from None


def fit_arguments(kind: str, name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types that the factory is annotated with: YAML reads `1e-1` as text.

    Only booleans, numbers, text and null are converted, and a value of another type than its annotation is a
    ConfigError. Arguments with other annotations, or unknown to the factory, are left as they are.
    """
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters
    except NameError:  # an annotation that is only there for a type checker
        return dict(arguments)
    fitted = {}
    for key, value in arguments.items():
        annotation = parameters[key].annotation if key in parameters else Any
        types = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        if all(t in WORDS for t in types) and type(value) not in types:
            found = [fitting for t in types if (fitting := _as_type(value, t)) is not None]
            if not found:
                wanted = " or ".join(WORDS[t] for t in types)
                raise ConfigError(f"{kind} {name!r}: {key} must be {wanted}, got {value!r}")
            value = found[0]
        fitted[key] = value
    return fitted


def _as_type(value: Any, wanted: type) -> Any:
    """The same number or text as another type; None if it cannot be converted."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if wanted is float and isinstance(value, int):
        return value
    try:
        if wanted is int:
            return int(value) if isinstance(value, str) or float(value).is_integer() else None
        return wanted(value) if wanted in (float, str) else None
    except ValueError:
        return None


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` that imports a public name from its home below the package when it is first used."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
