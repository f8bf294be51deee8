"""The identity of a task's verifier is its `version`; the code of a user's own class is part of it.

Whoever edits `verify` and leaves `version` as it was must not be given old verdicts. The tasks of Offleash and of
installed packages have versions that are changed by hand.
"""

from offleash.eval.code_fingerprint import is_installed, verifier_fingerprint
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task

_CODE = "+code."


def add_code_version(task: Task) -> None:
    """Add the fingerprint of the task's class to its `version`; one that was added before is replaced."""
    kind = type(task)
    if is_installed(kind.__module__):
        return
    version = f"{task.version.partition(_CODE)[0]}{_CODE}{verifier_fingerprint(kind)[:12]}"
    try:
        task.version = version
    except AttributeError as error:
        raise ConfigError(
            f"task {task.name!r}: the fingerprint of its code cannot be added to its version ({error}): make version a "
            "plain attribute"
        ) from error
