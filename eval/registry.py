"""Names of things that can be plugged in: a key of a table, or the dotted path of your own class or function.

Finding your own imports its module, which runs its code: a recipe that names one is to be trusted like a program.
What is found is called only if it is a class with the members that its kind needs, or a function with the very
parameters, so that a recipe cannot call `os:system`.
"""

import difflib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from offleash.eval.errors import ConfigError, OffleashError, first_line

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


_own_folders: list[str] = []


def search_for_modules(folder: str | Path) -> None:
    """From now on, find modules of one's own in this folder too, and what they import later; installed ones win."""
    name = str(folder)
    if name not in sys.path:
        sys.path.append(name)
        _own_folders.append(name)


def library_path() -> list[str]:
    """`sys.path` without folders that were added for one's own modules: what a verifier's sandbox may show."""
    return [folder for folder in sys.path if folder and folder not in _own_folders]


def find(kind: str, name: str, table: Mapping[str, str], members: Sequence[str]) -> Callable[..., Any]:
    """What `name` stands for: a key of `table`, whose values are "module:attribute", or such a path itself.

    The module is imported only now; one of your own may lie in the working directory, and must hold a class with these
    `members`. An unknown name is a ConfigError that suggests close ones.
    """
    check_name(kind, name, table)
    factory = _imported(kind, name, table.get(name, name))
    if name not in table:
        _check_class(kind, name, factory, members)
    return factory


def check_name(kind: str, name: str, table: Collection[str], example: str = "my_module:MyClass") -> None:
    """Raise ConfigError, suggesting close ones, for a name that is neither in the table nor a dotted path."""
    module_name, colon, _ = name.partition(":")
    if name not in table and (not colon or not module_name or module_name.startswith(".")):
        close = difflib.get_close_matches(name, table, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the names are: {', '.join(sorted(table))}"
        raise ConfigError(f"no {kind} is called {name!r}; {hint} (your own: {example})")


def find_function(kind: str, name: str, parameters: Sequence[str]) -> Callable[..., Any]:
    """The function of your own at the dotted path `name`, which must take these very `parameters`."""
    function = _imported(kind, name, name)
    wanted = f"def {name.partition(':')[2]}({', '.join(parameters)})"
    if not isinstance(function, FunctionType):
        raise ConfigError(f"{kind} {name!r} is a {type(function).__name__}: it must be a function, {wanted}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{kind} {name!r} is asynchronous: it must be a plain function, {wanted}")
    if list(inspect.signature(function).parameters) != list(parameters):
        raise ConfigError(f"{kind} {name!r} is {inspect.signature(function)}: it must be {wanted}")
    return function


def find_keyword_function(kind: str, name: str, reads: Sequence[str], given: Sequence[str]) -> Callable[..., Any]:
    """The function of your own at the dotted path `name`, if it can be called with `given` as keyword arguments.

    It must name one of `reads` as its parameter: not everything that swallows keywords is meant to be called so.
    """
    if not name.partition(":")[0] or name.startswith("."):
        raise ConfigError(f"{kind} {name!r} must be the path of a function: my_module:my_function")
    function = _imported(kind, name, name)
    if not inspect.isfunction(function):
        raise ConfigError(f"{kind} {name!r} is a {type(function).__name__}: it must be a function")
    signature = inspect.signature(function)
    try:
        signature.bind(**dict.fromkeys(given))
    except TypeError as error:
        raise ConfigError(
            f"{kind} {name!r}: {error}; it is called with {', '.join(given)} (end its parameters with **columns)"
        ) from None
    if not set(reads) & set(signature.parameters):
        raise ConfigError(f"{kind} {name!r} takes none of {', '.join(reads)}: it must have one of these parameters")
    return function


def _imported(kind: str, name: str, path: str) -> Any:
    """The attribute that `path` ("module:attribute") names, which can be called."""
    module_name, _, attribute = path.partition(":")
    module = _module(kind, name, module_name)
    found = getattr(module, attribute, None)
    if not callable(found):
        where = getattr(module, "__file__", None) or "built in"
        raise ConfigError(f"{kind} {name!r}: module {module_name} ({where}) has no {attribute!r} that can be called")
    return found


def _module(kind: str, name: str, module_name: str) -> ModuleType:
    is_ours = module_name.split(".")[0] == "offleash"
    if not is_ours:
        if (announce := _announce.get()) is not None:
            announce(kind, name)
        search_for_modules(Path.cwd())
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        looked = "" if is_ours else f" (the working directory is {Path.cwd()})"
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error}{looked}") from error
    except Exception as error:  # the code of a user's module can raise anything
        if is_ours:
            raise
        raise ConfigError(f"{kind} {name!r} cannot be imported: {_said(error)}") from error


def _said(error: Exception) -> str:
    """What a user's code raised, and where."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({Path(last.filename).name}, line {last.lineno})"
    return f"{type(error).__name__}: {first_line(error)}{place}"


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
    """Call `factory` after checking that it accepts the arguments; what one of your own raises is a ConfigError."""
    check_arguments(kind, name, factory, *args, **kwargs)
    try:
        return factory(*args, **kwargs)
    except OffleashError:
        raise
    except Exception as error:  # a user's constructor can raise anything
        if factory.__module__.split(".")[0] == "offleash":
            raise
        raise ConfigError(f"{kind} {name!r} cannot be made: {_said(error)}") from error


def check_arguments(kind: str, name: str, factory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Raise ConfigError, listing the accepted arguments, if the factory does not accept these."""
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError as error:
        known = list(inspect.signature(factory).parameters.values())[len(args) :]
        accepted = ", ".join(one.name for one in known if one.kind is not inspect.Parameter.VAR_KEYWORD) or "none"
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
