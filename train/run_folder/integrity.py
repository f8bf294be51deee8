"""Whether a checkpoint still is what was written: the Trainer skips some missing files in silence.

A complete checkpoint is sealed (`callbacks.watch.sealed`). Of one without a seal (an older version wrote it, or a kill
came just before), the files must be those that a resume needs, and readable.
"""

from pathlib import Path

from offleash.callbacks.watch.sealed import broken_seal, is_readable, is_sealed, trainer_state

WEIGHTS = ("*.safetensors", "pytorch_model*", "adapter_model*", "global_step*")
RANDOM, SCHEDULER, OPTIMIZER, ZERO = "rng_state*.pth", "scheduler.pt", "optimizer*", "global_step*"


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, None if nothing is."""
    try:
        return broken_seal(checkpoint) if is_sealed(checkpoint) else _unusable(checkpoint)
    except OSError as error:
        return str(error)


def _unusable(checkpoint: Path) -> str | None:
    if trainer_state(checkpoint) is None:
        return "trainer_state.json is missing or cannot be read"
    if not any(path for pattern in WEIGHTS for path in checkpoint.glob(pattern)):
        return "its weights are missing"
    # All three, or none of them (save_only_model). DeepSpeed may keep the scheduler in its own folder.
    wanted = (RANDOM, OPTIMIZER, SCHEDULER) if not any(checkpoint.glob(ZERO)) else (RANDOM,)
    lacking = [pattern for pattern in wanted if not any(checkpoint.glob(pattern))]
    if lacking and len(lacking) < len(wanted):
        return f"{lacking[0]} is missing"
    return next((f"{path.name} cannot be read" for path in sorted(checkpoint.iterdir()) if not is_readable(path)), None)
