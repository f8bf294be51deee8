"""What watches a run."""

from offleash.callbacks.guard import SupportGuard
from offleash.callbacks.rollouts import RolloutCallback
from offleash.callbacks.support import SupportCallback

__all__ = ["RolloutCallback", "SupportCallback", "SupportGuard"]
