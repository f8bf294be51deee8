"""The tree of errors a user can meet; each is also the standard error it specializes.

OffleashError
├── ConfigError (ValueError)     a recipe, flag or argument that cannot be used
├── PoolError (ValueError)       a pool on disk that is broken, or not the pool that was asked for
├── EngineError (RuntimeError)   an engine or its server failed, or returned samples that cannot be right
├── VerifyError (RuntimeError)   the verifier, not the model, failed too often to trust a number
└── MonitorError (RuntimeError)  the monitor cannot measure what it promises
"""

from offleash.eval.secrets import hide


class OffleashError(Exception):
    """The base class of every error that Offleash raises on purpose, so that one `except` catches them all.

    The message says what is wrong, what was found, and how to fix it.

    >>> from offleash.eval import OffleashError, load_task
    >>> try:
    ...     load_task("countdwn")
    ... except OffleashError as error:
    ...     print(type(error).__name__, "countdown" in str(error))
    ConfigError True
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(hide(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(OffleashError, ValueError):
    pass


class PoolError(OffleashError, ValueError):
    pass


class EngineError(OffleashError, RuntimeError):
    pass


class VerifyError(OffleashError, RuntimeError):
    pass


class MonitorError(OffleashError, RuntimeError):
    pass


def first_line(error: BaseException, width: int = 200) -> str:
    """The first non-empty line of a library's error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:width]
