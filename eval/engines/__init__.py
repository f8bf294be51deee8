"""The table of engines by name; an engine of your own is named by its dotted path, `my_module:MyEngine`."""

import difflib
import inspect
from importlib import import_module
from typing import Any

from offleash.eval.engines.base import Completion, Drawn, Engine, Request
from offleash.eval.engines.source import ModelSource
from offleash.eval.errors import ConfigError

__all__ = ["ENGINES", "Completion", "Drawn", "Engine", "ModelSource", "Request", "find_engine", "load_engine"]

ENGINES: dict[str, str] = {
    "transformers": "offleash.eval.engines.transformers_engine:TransformersEngine",
    "vllm": "offleash.eval.engines.vllm_engine:VllmEngine",
    "openai": "offleash.eval.engines.openai_engine:OpenAIEngine",
}


def load_engine(name: str, source: ModelSource, *, context: int, **options: Any) -> Engine:
    """The engine of that name or dotted path, with the model loaded.

    `context` is how many tokens the longest prompt and completion have together; `options` are the engine's own.
    """
    factory = find_engine(name)
    try:
        inspect.signature(factory).bind(source, context=context, **options)
    except TypeError as error:
        accepted = [p for p in inspect.signature(factory).parameters if p not in ("source", "context")]
        raise ConfigError(f"engine {name!r}: {error}; its options are: {', '.join(accepted) or 'none'}") from None
    engine: Engine = factory(source, context=context, **options)
    return engine


def find_engine(name: str) -> Any:
    """What builds the engine of that name or dotted path. Its module is imported only now."""
    module_name, colon, attribute = ENGINES.get(name, name).partition(":")
    if not colon:
        close = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the names are: {', '.join(ENGINES)}"
        raise ConfigError(f"no engine is called {name!r}; {hint} (an engine of your own: my_module:MyEngine)")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine {name!r} cannot be imported: {error}") from error
    if not callable(factory := getattr(module, attribute, None)):
        raise ConfigError(f"engine {name!r}: module {module_name} has no class or function {attribute!r}")
    return factory
