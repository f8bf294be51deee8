"""Offleash: RLVR training and monitoring. What does training gain against the base model, and what does it lose?

    from offleash import SupportCallback
    trainer.add_callback(SupportCallback(trainer, probe=held_out, k=64, every=50))

These are the public names of `offleash.callbacks`, `offleash.eval` and `offleash.train`, except the function `train`,
whose name here is that of the package. Each is imported when it is first used, so that `import offleash` stays light.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from offleash import callbacks, eval, train

if TYPE_CHECKING:
    from offleash.callbacks import *  # noqa: F403
    from offleash.eval import *  # noqa: F403
    from offleash.train import *  # type: ignore[no-redef]  # noqa: F403

_ROOMS = {name: room for room in (callbacks, eval, train) for name in room.__all__ if name != "train"}
__all__ = sorted(_ROOMS)
__version__ = version("offleash")


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_ROOMS[name], name)
