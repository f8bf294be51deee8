"""The settings of a pool: everything that decides the distribution of its samples and their verdicts, and fingerprints.

How many samples and of which problems is recorded and not compared: a pool grows.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from offleash.eval.errors import PoolError
from offleash.eval.files import write_atomic
from offleash.eval.fingerprint import canonical_json
from offleash.eval.sampling import Plan, is_untruncated

MAX_K = 10_000_000
"""Samples per problem: a pool keeps track of each in memory."""

MULTI_TURN = "-multiturn"
"""How the engine's name ends where the completions are transcripts: not all of their tokens are the model's."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Settings on record. Fields with `compare=False` are informative; the others decide whether two specs agree."""

    def fingerprint(self) -> str:
        """Sha256 over the compared fields as canonical JSON: equal if and only if `differences` is empty."""
        return _sha256(self._compared())

    def differences(self, other: Self) -> list[str]:
        """The compared fields that differ, each as "name: mine -> other's"."""
        mine, theirs = self._compared(), other._compared()
        return [
            f"{name}: {mine[name]!r} -> {theirs[name]!r}"
            for name in mine
            if canonical_json(mine[name]) != canonical_json(theirs[name])
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, path: Path, version: int, **more: Any) -> None:
        """As JSON, with its fingerprint, the version of the format and what else is to stand beside it; dated."""
        values = self.to_json()
        values["created"] = values["created"] or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        content = {"format": version, "fingerprint": self.fingerprint(), **more, "spec": values}
        write_atomic(path, json.dumps(content, indent=2).encode())

    def _compared(self) -> dict[str, Any]:
        values = self.to_json()
        return {item.name: values[item.name] for item in fields(self) if item.compare}


def _sha256(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec(Spec):
    """The settings of one pool. No sampling field has a default: engines differ in theirs.

    Parameters that are off: `top_p=1.0`, `top_k=0`, `min_p=0.0`, `repetition_penalty=1.0`. `revision` is ""
    for a local folder. `model`, `revision`, `versions` and `created` are recorded and never compared: the weights are.
    Neither are `k` and `problems`, the extent of a pool.
    """

    task: str
    task_version: str
    """Of the verifier. `offleash rejudge` changes it, and with it every verdict."""
    problems: str = field(compare=False)
    """`fingerprint.problems_fingerprint`."""
    template: str
    """`fingerprint.template_fingerprint`."""
    model: str = field(compare=False)
    revision: str = field(compare=False)
    weights: str
    """`fingerprint.weights_fingerprint`."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_new_tokens: int
    stop: tuple[str, ...]
    seed: int | str
    k: int = field(compare=False)
    """The budget: the samples of a problem are numbered 0 to k - 1."""
    plan: Plan
    engine: str
    dtype: str
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    created: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        # 1 and 1.0, or a list and a tuple, are one setting and must give one fingerprint.
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "versions", {name: str(version) for name, version in self.versions.items()})
        if not 1 <= self.k <= MAX_K:
            raise PoolError(f"a pool has at least 1 and at most {MAX_K:,} samples per problem, got k={self.k}")
        try:
            self.fingerprint()
        except (TypeError, ValueError) as error:
            raise PoolError(f"a pool's spec must be plain JSON values: {error}") from error

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "plan": self.plan.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PoolSpec":
        """Raises PoolError naming the fields that are missing or unknown."""
        names = {item.name for item in fields(cls)}
        if names != values.keys():
            missing, unknown = sorted(names - values.keys()), sorted(values.keys() - names)
            raise PoolError(
                f"the pool's spec has other fields than this version of Offleash: missing {missing}, unknown {unknown}"
            )
        try:
            return cls(**{**values, "plan": Plan.from_json(values["plan"])})
        except (AttributeError, TypeError, ValueError) as error:
            raise PoolError(f"the pool's spec cannot be read: {error}") from error

    def former_fingerprint(self) -> str:
        """As formats 1 to 3 had it, over problems and k too."""
        return _sha256({**self._compared(), "problems": self.problems, "k": self.k})

    def is_judged_otherwise(self, other: "PoolSpec") -> bool:
        """Whether the two differ in the verifier and in nothing else."""
        return self.task_version != other.task_version and not self.differences(
            replace(other, task_version=self.task_version)
        )

    @property
    def multi_turn(self) -> bool:
        """True if its completions are transcripts (`offleash.eval.transcript`) with what tools returned."""
        return self.engine.endswith(MULTI_TURN)

    @property
    def untruncated(self) -> bool:
        """True if its samples follow the model's own distribution at the pool's temperature."""
        return is_untruncated(self.top_p, self.top_k, self.min_p, self.repetition_penalty)
