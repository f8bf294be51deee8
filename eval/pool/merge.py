"""Pools of one identity into one: parts of other machines, other problems, other ranges of indices.

Everything is checked before anything is written: settings, problems, and that samples which several pools hold are the
same. Then samples are appended part by part, so that a merge which was killed leaves a pool that lacks samples, and the
same command adds them. The sources are only read.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.lock import held
from offleash.eval.pool import manifest
from offleash.eval.pool.manifest import NAME, check_content, check_folder
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import SCHEMA
from offleash.eval.pool.store import Chunk
from offleash.eval.problem import Problem
from offleash.eval.storage import path_at

_COMPARED = ("completion", "answer", "spelling", "correct", "status", "tokens")
"""Log-probabilities differ in their last digits between machines."""


class Merged(NamedTuple):
    """A pool that others were merged into."""

    pool: Pool
    added: int
    """Samples that this call wrote."""
    shared: int
    """Samples that more than one of the pools had, each the same in all."""


def merge_pools(out: str | Path, pools: Sequence[str | Path]) -> Merged:
    """Merge pools of one identity (model, template, sampling, seed, task, verifier) into `out`, new or one of them.

    Raises PoolError, and writes nothing, naming the setting, the problem or the sample in which two pools differ. The
    same call goes on after a crash.

    >>> from offleash.eval import Sampling, load_task, merge_pools, sample_pool
    >>> task = load_task("countdown", split="probe", n=4)
    >>> settings = {"k": 8, "sampling": Sampling(max_new_tokens=20), "progress": False}
    >>> for shard in ("1/2", "2/2"):
    ...     _ = sample_pool("lab", task, "pools/part-" + shard[0], shard=shard, **settings)
    >>> merged = merge_pools("pools/merged", ["pools/part-1", "pools/part-2"])
    >>> len(merged.pool.problem_ids), merged.pool.is_complete, merged.added
    (4, True, 32)
    """
    if not pools:
        raise ConfigError("there is nothing to merge: name at least one pool")
    target = path_at(out)
    check_folder(target)
    sources = [Pool.open(path) for path in pools if path_at(path).resolve() != target.resolve()]
    every = [Pool.open(target), *sources] if (target / NAME).exists() else sources
    _check_settings(every)
    union = _check_problems(every)
    shared = _check_samples(every, union)
    with held(target, f"another process is writing to {target}: wait for it, then run the same command again"):
        pool = _asked(target, sources or every)
        return Merged(pool, sum(_add(pool, source) for source in sources), shared)


def _check_settings(pools: Sequence[Pool]) -> None:
    first = pools[0]
    for pool in pools[1:]:
        if differences := first.spec.differences(pool.spec):
            judged = first.spec.is_judged_otherwise(pool.spec)
            hint = ": judge one of them again with offleash rejudge" if judged else ""
            raise PoolError(
                f"{pool.path} cannot be merged with {first.path} (the latter's -> the former's): "
                f"{'; '.join(differences)}{hint}"
            )


def _check_problems(pools: Sequence[Pool]) -> dict[str, int]:
    """The place of every problem in the union."""
    known: dict[str, Problem] = {}
    listed: dict[str, Any] = {}
    for pool in pools:
        check_content(pool.path, known, pool.problems)
        for problem, answers in zip(pool.problems, pool.answers, strict=True):
            if listed.setdefault(problem.id, answers) != answers:
                raise PoolError(f"{pool.path}: problem {problem.id!r} lists other correct answers than in another pool")
            known.setdefault(problem.id, problem)
    return {name: place for place, name in enumerate(known)}


def _check_samples(pools: Sequence[Pool], union: dict[str, int]) -> int:
    """How many samples more than one pool has. Raises PoolError, naming the first, if two of them are not the same."""
    count_pk = np.zeros((len(union), max(pool.spec.k for pool in pools)), dtype=np.int16)
    for pool in pools:
        count_pk[_places(pool, union), : pool.spec.k] += pool.seen()
    digest_pk = np.zeros(count_pk.shape if (count_pk > 1).any() else (0, 0), dtype=np.uint64)
    for pool in pools if digest_pk.size else ():
        place_p = _places(pool, union)
        for chunk in pool.scan(_COMPARED):
            problem_r = place_p[chunk.problem_r]
            rows = np.flatnonzero(count_pk[problem_r, chunk.index_r] > 1)
            for problem, index, digest in zip(problem_r[rows], chunk.index_r[rows], _digests(chunk, rows), strict=True):
                if digest_pk[problem, index] not in (0, digest):
                    raise PoolError(
                        f"{pool.path}: sample {index} of problem {list(union)[problem]!r} is another one than in "
                        "another of the pools, although their settings agree: leave one of the two out"
                    )
                digest_pk[problem, index] = digest
    return int((count_pk > 1).sum())


def _digests(chunk: Chunk, rows: np.ndarray) -> list[int]:
    """Never 0."""
    records = chunk.columns.take(pa.array(rows)).to_pylist()
    texts = [repr([record[name] for name in _COMPARED]).encode("utf-8", "surrogatepass") for record in records]
    return [int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") | 1 for text in texts]


def _places(pool: Pool, union: dict[str, int]) -> np.ndarray:
    return np.array([union[name] for name in pool.problem_ids], dtype=np.int64)


def _asked(target: Path, sources: Sequence[Pool]) -> Pool:
    """The pool in `target`, created if there is none, asked for what every source was asked for."""
    first = sources[0]
    if not (target / NAME).exists():
        manifest.create(target, first.spec, first.problems, first.answers, first.budget_p.tolist())
    for pool in sources:
        manifest.grow(target, pool.problems, pool.answers, pool.budget_p.tolist())
    return Pool.open(target)


def _add(pool: Pool, source: Pool) -> int:
    """Append what only the source has, and return how many samples that were."""
    place = {name: i for i, name in enumerate(pool.problem_ids)}
    place_p, seen_pk, added = _places(source, place), pool.seen(), 0
    for chunk in source.scan(SCHEMA.names):
        new = np.flatnonzero(~seen_pk[place_p[chunk.problem_r], chunk.index_r])
        if len(new):
            pool.append(pa.Table.from_batches([chunk.take(new).columns]).cast(SCHEMA))
            added += len(new)
    return added
