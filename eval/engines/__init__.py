"""The table of engines by name; an engine of your own is named by its dotted path, `my_module:MyEngine`."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from offleash.eval.engines.base import Engine
from offleash.eval.engines.model import ModelSource
from offleash.eval.errors import ConfigError
from offleash.eval.registry import build, check_arguments, check_name, find, fit_arguments

ENGINES: dict[str, str] = {
    "transformers": "offleash.eval.engines.transformers_engine:TransformersEngine",
    "vllm": "offleash.eval.engines.vllm_engine:VllmEngine",
    "openai": "offleash.eval.engines.openai_engine:OpenAIEngine",
}


def load_engine(name: str, source: ModelSource, /, *, context: int, **options: Any) -> Engine:
    """The engine of that name or dotted path, with the model loaded.

    `context` is the largest number of tokens of a prompt with its completion; `options` are the engine's own.
    """
    fitted = fit_arguments("engine", name, find_engine(name), options)
    engine: Engine = build("engine", name, find_engine(name), source, context=context, **fitted)
    return engine


def check_engine_args(name: str, source: ModelSource, /, **options: Any) -> None:
    """Raise, before anything is loaded, what `load_engine` would raise for wrong arguments or a missing package."""
    if "context" in options:
        raise ConfigError(f"engine {name!r}: context is computed from the prompts and max_new_tokens: leave it out")
    check_arguments("engine", name, find_engine(name), source, context=0, **options)
    fit_arguments("engine", name, find_engine(name), options)
    if name == "transformers" and source.adapter is not None and find_spec("peft") is None:
        raise ConfigError(f"{source.adapter} is a PEFT adapter: pip install 'offleash[peft]'")
    if name == "vllm" and find_spec("vllm") is None:
        raise ConfigError("the engine vllm is not installed: pip install 'offleash[vllm]'")


def check_engine_name(name: str) -> None:
    """Raise ConfigError for a name that stands for no engine. Imports nothing."""
    check_name("engine", name, ENGINES)


def find_engine(name: str) -> Callable[..., Any]:
    """The class of the engine of that name or dotted path."""
    return find("engine", name, ENGINES, ("generate", "close"))
