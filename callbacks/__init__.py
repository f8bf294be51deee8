"""What watches a run: support against the base, rollouts, guards. For any `trl.GRPOTrainer`."""

from typing import TYPE_CHECKING

from offleash.eval.registry import lazy

if TYPE_CHECKING:
    from offleash.callbacks.guard import SupportGuard
    from offleash.callbacks.rollouts import RolloutCallback
    from offleash.callbacks.support import SupportCallback

__all__ = ["RolloutCallback", "SupportCallback", "SupportGuard"]

_HOMES = {"RolloutCallback": "rollouts", "SupportCallback": "support", "SupportGuard": "guard"}
__getattr__ = lazy(__name__, _HOMES)
