"""A YAML file that is one mapping of keys to values: recipes, overlays, and the settings of a command."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from offleash.eval.errors import ConfigError


class _UniqueLoader(yaml.SafeLoader):
    """YAML silently keeps the last of two equal keys; here a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ConfigError(f"{key!r} is duplicated (line {key_node.start_mark.line + 1})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml_mapping(path: Path, what: str) -> dict[str, Any]:
    """The keys and values of a file; `what` it is, for an error: "a recipe"."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _UniqueLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {what} is a mapping of keys to values, got {type(values).__name__}")
    return {str(key): value for key, value in values.items()}
