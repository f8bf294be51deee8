"""What watches a run: support against the base, rollouts, guards. For any `trl.GRPOTrainer`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offleash.callbacks.guard import SupportGuard
    from offleash.callbacks.rollouts import RolloutCallback
    from offleash.callbacks.support import SupportCallback

__all__ = ["RolloutCallback", "SupportCallback", "SupportGuard"]

_HOMES = {"RolloutCallback": "rollouts", "SupportCallback": "support", "SupportGuard": "guard"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
