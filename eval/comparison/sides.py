"""Which pools are compared with which: folders into sides, sides matched by task, and what may not differ.

A side is one model, with one pool per task. A folder is a pool or holds pools. Pools of different tasks are one side;
several pools of one task, as a training run leaves them (`pools/step-000050`, ...), are a side each, and a series.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from offleash.eval.comparison.result import SideInfo
from offleash.eval.errors import ConfigError, PoolError, first_line
from offleash.eval.fingerprint import canonical_json, problems_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.storage import path_at

PoolSource = str | Path | Pool
"""A pool, the folder of one, or a folder that holds pools."""

_MUST_AGREE = ("task", "task_version")
_MAY_BE_FORCED = (
    "template",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_new_tokens",
    "stop",
)
_NOTED = ("engine", "dtype")
_FINGERPRINTED = re.compile(r"-[0-9a-f]{16}$")  # a base pool that the monitor named
_STEP = re.compile(r"(?:step|checkpoint|ckpt)[-_ ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Side:
    """One model's pools, one per task; `label` is the name of their folder."""

    label: str
    pools: tuple[Pool, ...]
    folder: Path

    @property
    def step(self) -> int | None:
        """The training step, where the label or the revision names one."""
        for text in (self.label, self.pools[0].spec.revision):
            if found := _STEP.findall(text):
                return int(found[-1])
        return None


def find_base(source: PoolSource | Sequence[PoolSource]) -> Side:
    """All pools named by `source`, or below it, as one side. Raises PoolError if two of them are of one task."""
    side = _one_side(_as_list(source), "the base")
    return replace(side, label="base") if _FINGERPRINTED.search(side.label) else side


def find_policies(source: PoolSource | Sequence[PoolSource | Sequence[PoolSource]]) -> list[Side]:
    """The sides in `source`: all that a folder holds, and those of each item of a list; an inner list is one side."""
    sides: list[Side] = []
    for item in _as_list(source):
        is_path = isinstance(item, str | Path)
        sides += _sides_below(path_at(item)) if is_path else [_one_side(_as_list(item), "a policy")]
    return sides


def _as_list(source: Any) -> list[Any]:
    return [source] if isinstance(source, str | Path | Pool) else list(source)


def _one_side(sources: Sequence[PoolSource], role: str) -> Side:
    if not sources:
        raise ConfigError(f"{role} has no pools: name at least one")
    paths = [source.path if isinstance(source, Pool) else path_at(source) for source in sources]
    found: dict[Path, Pool] = {}
    for source, path in zip(sources, paths, strict=True):
        found |= {source.path: source} if isinstance(source, Pool) else {p: Pool.open(p) for p in _pool_folders(path)}
    return _side(" + ".join(map(_name, paths)), list(found.values()), paths[0], role)


def _sides_below(root: Path) -> list[Side]:
    """The sides at or below one path, in the order of their steps or names."""
    by_parent: dict[Path, list[Pool]] = {}
    for folder in _pool_folders(root):
        by_parent.setdefault(folder if folder == root else folder.parent, []).append(Pool.open(folder))
    sides: list[Side] = []
    for parent, pools in by_parent.items():
        tasks = [pool.spec.task for pool in pools]
        if len(set(tasks)) == len(tasks):
            sides.append(_side(_name(parent), pools, parent, "a policy"))
        elif len(set(tasks)) == 1:
            sides += [_side(_name(pool.path), [pool], pool.path, "a policy") for pool in pools]
        else:
            raise PoolError(
                f"{parent} holds several pools of task {_repeated(tasks)!r} beside other tasks: give each checkpoint's "
                "pools their own folder, or name them with --policy"
            )
    return sorted(sides, key=lambda side: (side.step or 0, _natural(side.label)))


def distinct_labels(sides: Sequence[Side]) -> list[Side]:
    """The same sides; duplicate labels get as much of their path as makes them distinct."""
    result = list(sides)
    for depth in range(2, 8):
        labels = [side.label for side in result]
        for i, side in enumerate(result):
            if labels.count(side.label) > 1:
                result[i] = replace(side, label="/".join(side.folder.parts[-depth:]))
    return result


def match_by_task(base: Side, policy: Side) -> tuple[list[tuple[Pool, Pool]], list[str]]:
    """Pools of the same task, and a warning for every task that only one side has. Raises PoolError if none is left."""
    of_base = {pool.spec.task: pool for pool in base.pools}
    of_policy = {pool.spec.task: pool for pool in policy.pools}
    pairs = [(of_base[task], pool) for task, pool in of_policy.items() if task in of_base]
    if not pairs:
        raise PoolError(
            f"{policy.label} cannot be compared with {base.label} (base's -> policy's): task: {', '.join(of_base)} -> "
            f"{', '.join(of_policy)}. Draw both on the same task"
        )
    alone = [f"task {task!r} is only in {base.label}: left out" for task in of_base if task not in of_policy]
    alone += [f"task {task!r} is only in {policy.label}: left out" for task in of_policy if task not in of_base]
    return pairs, alone


def check_comparable(base: Pool, policy: Pool, force: bool = False) -> list[str]:
    """Warnings about two pools of one task. Raises PoolError naming every setting that makes them incomparable.

    `force` lets template and sampling differ, with a warning; never the task, its version or its problems.
    """
    fatal, forced = _differences(base, policy, _MUST_AGREE), _differences(base, policy, _MAY_BE_FORCED)
    fatal += _other_problems(base, policy)
    if fatal or (forced and not force):
        hint = "" if fatal else "; --force compares them anyway"
        raise PoolError(
            f"{policy.path} cannot be compared with {base.path} (base's -> policy's): {'; '.join(fatal + forced)}. "
            f"Only weights, seed and budget may differ{hint}"
        )
    warnings = [f"FORCED although {difference} ({policy.path.name})" for difference in forced]
    warnings += _left_out(base, policy)
    warnings += [f"{difference} ({policy.path.name})" for difference in _differences(base, policy, _NOTED)]
    warnings += [
        f"{pool.path.name} does not say {' and '.join(gaps)}: whether base and policy agree is not checked"
        for pool in (base, policy)
        if (gaps := _unknown(pool))
    ]
    if base.path.resolve() == policy.path.resolve():
        warnings.append(f"{policy.path.name} is compared with itself: nothing can be lost or gained")
    elif base.spec.fingerprint() == policy.spec.fingerprint():
        warnings.append(f"{policy.path.name} has the base's weights, sampling and seed: its samples may be the same")
    return warnings


def shared_problems(base: Pool, policy: Pool) -> tuple[Pool, Pool]:
    """The two with nothing but the problems that both have, in the order of the base."""
    ids = set(policy.problem_ids)
    both = [name for name in base.problem_ids if name in ids]
    return base.only(both), policy.only(both)


def _other_problems(base: Pool, policy: Pool) -> list[str]:
    """Why the problems of two pools cannot be compared."""
    of_base = dict(zip(base.problem_ids, zip(base.problems, base.answers, strict=True), strict=True))
    shared = False
    for problem, answers in zip(policy.problems, policy.answers, strict=True):
        if problem.id in of_base:
            shared = True
            other, listed = of_base[problem.id]
            if problems_fingerprint([other]) != problems_fingerprint([problem]):
                return [f"problems: {problem.id!r} has another prompt or gold"]
            if listed != answers:
                return [f"correct answers listed: they differ for {problem.id!r}"]
    return [] if shared else ["problems: the two have none in common"]


def _left_out(base: Pool, policy: Pool) -> list[str]:
    notes = []
    for pool, other, side in ((base, policy, "policy"), (policy, base, "base")):
        if count := len(set(pool.problem_ids) - set(other.problem_ids)):
            notes.append(
                f"{count:,} of the {len(pool.problem_ids):,} problems of {pool.path.name} are left out: the {side} has "
                "no samples of them"
            )
    return notes


def _unknown(pool: Pool) -> list[str]:
    """What an imported pool does not record about how it was drawn."""
    sampling = pool.spec.temperature < 0 or pool.spec.max_new_tokens < 0
    template = pool.spec.template == "unknown"
    return ["how it was sampled"] * sampling + ["which template it used"] * template


def side_info(side: Side, draws: int) -> SideInfo:
    spec = side.pools[0].spec
    return SideInfo(
        label=side.label,
        series=_series(side.folder.resolve()),
        # A local path says more of the machine than of the model.
        model=PurePath(spec.model).name if PurePath(spec.model).is_absolute() else spec.model,
        revision=spec.revision,
        step=side.step,
        tasks=tuple(pool.spec.task for pool in side.pools),
        problems=sum(len(pool.problem_ids) for pool in side.pools),
        draws=draws,
        temperature=spec.temperature,
        top_p=spec.top_p,
        max_new_tokens=spec.max_new_tokens,
        engine=spec.engine,
        specs=tuple(pool.spec for pool in side.pools),
    )


def _differences(base: Pool, policy: Pool, names: Sequence[str]) -> list[str]:
    pairs = ((name, getattr(base.spec, name), getattr(policy.spec, name)) for name in names)
    return [
        f"{name}: {one!r} -> {other!r}" for name, one, other in pairs if canonical_json(one) != canonical_json(other)
    ]


def _pool_folders(path: Path) -> list[Path]:
    try:
        if (path / "pool.json").is_file():
            return [path]
        if not path.is_dir():
            raise PoolError(f"{path} does not exist: a pool is a folder with a pool.json")
        found = sorted(file.parent for file in path.rglob("pool.json"))
    except OSError as error:  # no permission, no connection
        raise PoolError(f"cannot read {path}: {error.strerror or first_line(error)}") from error
    if not found:
        raise PoolError(f"{path} is not a pool (it has no pool.json) and holds none: draw one with offleash sample")
    return found


def _name(path: Path) -> str:
    """The last part of a path that is not empty."""
    return path.name or path.resolve().name


def _series(folder: Path) -> str:
    """RUN/pools/step-000050 is of RUN, sweep/step-50 of sweep."""
    above = folder.parent
    return above.parent.name if above.name == "pools" else above.name


def _side(label: str, pools: Sequence[Pool], folder: Path, role: str) -> Side:
    if task := _repeated([pool.spec.task for pool in pools]):
        same = [pool.path.name for pool in pools if pool.spec.task == task]
        raise PoolError(
            f"{role} ({label}) has {len(same)} pools of task {task!r} ({', '.join(same[:4])}): name one of them"
        )
    return Side(label, tuple(sorted(pools, key=lambda pool: pool.spec.task)), folder)


def _repeated(tasks: Sequence[str]) -> str | None:
    return next((task for task in tasks if tasks.count(task) > 1), None)


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
