"""Which checkpoints of a run are measured, and when."""

import math
from dataclasses import dataclass

from offleash.eval.errors import ConfigError
from offleash.eval.flags import setting

ORDERS = ("newest", "oldest")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """As `offleash watch` takes them. Checked when made."""

    every: int = setting(1, "only checkpoints of every Nth step, and the last of a run", metavar="N")
    order: str = setting("newest", "which of the checkpoints that wait is next", choices=ORDERS)
    behind: int | None = setting(None, "only the newest N checkpoints; older ones are left out", metavar="N")
    poll: float = setting(30.0, "seconds between looks at the folder", metavar="SECONDS")
    once: bool = False
    """Measure the steps that exist, then exit."""

    def __post_init__(self) -> None:
        wanted = {
            "every": (self.every >= 1, "at least 1"),
            "order": (self.order in ORDERS, " or ".join(ORDERS)),
            "behind": (self.behind is None or self.behind >= 1, "at least 1"),
            "poll": (0 < self.poll < math.inf, "above 0 and finite"),
        }
        for name, (good, what) in wanted.items():
            if not good:
                raise ConfigError(f"{name} (--{name}) must be {what}; got {getattr(self, name)!r}")
