"""One way to name a thing that can be plugged in: a word from its table, or the dotted path of one's own."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from offleash.eval.errors import ConfigError

__all__ = ["build", "check_arguments", "find"]


def find(kind: str, name: str, table: Mapping[str, str]) -> Callable[..., Any]:
    """What `name` stands for: a key of `table`, whose values are "module:attribute", or such a path itself.

    The module is imported only now. Raises ConfigError with the close names.
    """
    module_name, colon, attribute = table.get(name, name).partition(":")
    if not colon:
        close = difflib.get_close_matches(name, table, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the names are: {', '.join(sorted(table))}"
        raise ConfigError(f"no {kind} is called {name!r}; {hint} (one of your own: my_module:MyClass)")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error}") from error
    if not callable(factory := getattr(module, attribute, None)):
        raise ConfigError(f"{kind} {name!r}: module {module_name} has no class or function {attribute!r}")
    return factory


def build(kind: str, name: str, factory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `factory`, if the arguments fit it."""
    check_arguments(kind, name, factory, *args, **kwargs)
    return factory(*args, **kwargs)


def check_arguments(kind: str, name: str, factory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Arguments that do not fit the factory are a ConfigError that lists those that do."""
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError as error:
        accepted = ", ".join(list(inspect.signature(factory).parameters)[len(args) :]) or "none"
        raise ConfigError(f"{kind} {name!r}: {error}; its arguments are: {accepted}") from None
