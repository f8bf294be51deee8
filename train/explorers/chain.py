"""Explorers of one run act one after another; a chain in which one would drop what another did is refused."""

from collections.abc import Sequence

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer


def overrides(explorer: Explorer, hook: str) -> bool:
    """Whether its class has a hook of its own."""
    return getattr(type(explorer), hook) is not getattr(Explorer, hook)


def require_chain(explorers: Sequence[Explorer]) -> None:
    """An explorer that computes advantages afresh must come first, and shaped rewards would not reach it.

    A batch is drawn by one explorer, and a group has room for one trace.
    """
    for hook in ("collect", "traces"):
        if len(both := [type(e).__name__ for e in explorers if overrides(e, hook)]) > 1:
            raise ConfigError(f"{' and '.join(both)} cannot be joined, {hook} of one alone is used: choose one")
    for place, explorer in enumerate(explorers):
        if not explorer.replaces_advantages:
            continue
        name = type(explorer).__name__
        dropped = [type(e).__name__ for e in explorers[:place] if overrides(e, "advantages")]
        if dropped:
            raise ConfigError(
                f"{name} computes advantages afresh and would drop those of {' and '.join(dropped)}: "
                + (f"name {name} first" if not explorers[0].replaces_advantages else "choose one of them")
            )
        ignored = [type(e).__name__ for e in explorers if e is not explorer and overrides(e, "rewards")]
        if ignored:
            raise ConfigError(
                f"{name} computes advantages from the true rewards and would ignore those of {' and '.join(ignored)}: "
                "choose one of them"
            )
