"""What the arguments of explorers may be: outside of it a method does nothing, the opposite, or NaN."""

from math import inf

from offleash.eval.errors import ConfigError


def require_positive(explorer: str, **arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 < value < inf:
            raise ConfigError(f"{name} of explorer {explorer} must be above 0, got {value}")


def require_not_negative(explorer: str, **arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 <= value < inf:
            raise ConfigError(f"{name} of explorer {explorer} must be 0 or more, got {value}")


def require_share(explorer: str, **arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 < value <= 1:
            raise ConfigError(f"{name} of explorer {explorer} must be above 0 and at most 1, got {value}")
