"""A recipe or overlay as it stands in its file: one flat YAML mapping, in which nothing is said twice."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from offleash.eval.errors import ConfigError


class _UniqueLoader(yaml.SafeLoader):
    """YAML keeps the last of two equal keys in silence; a recipe that says a thing twice is refused instead."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ConfigError(f"{key!r} stands twice (line {key_node.start_mark.line + 1})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_recipe_file(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(), _UniqueLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys to values, got {type(values).__name__}")
    return {str(key): value for key, value in values.items()}
