"""A test for completions that repeat more often than chance allows: a seed bug turns pass@k into pass@1.

A completion is sampled again with probability exp(its log-probability), which is known. Each sample is compared with
the one before it in its block, and with the one at the same place of the problem's first block: given the earlier of
the two, a repeat is a Bernoulli trial with a known probability, and the sum over all of them has a known mean and
variance. Servers that answer from a cache, seeds that are ignored or used for two blocks, workers that sample the same:
all show up there. Without log-probabilities only a duplicated block is noticed, against the shares within the block.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offleash.eval.engines.base import Completion
from offleash.eval.errors import EngineError
from offleash.eval.pool.pool import Pool

IMPOSSIBLE = math.log(1e-9)
SIGMAS = 6.0
SLACK = 0.1
"""Share of the expected repeats that two tokenizations of one text may add."""


@dataclass(slots=True)
class RepeatTest:
    """Repeats seen against repeats expected: a sum of independent Bernoulli trials with known probabilities."""

    seen: int = 0
    expected: float = 0.0
    variance: float = 0.0

    def add(self, same_r: np.ndarray, logp_r: np.ndarray) -> None:
        """`logp_r` of the earlier completion of each pair; NaN where unknown, and the pair is left out."""
        known = ~np.isnan(logp_r)
        chance_r = np.exp(np.minimum(logp_r[known], 0.0))
        self.seen += int(np.count_nonzero(same_r[known]))
        self.expected += float(chance_r.sum())
        self.variance += float((chance_r * (1 - chance_r)).sum())

    @property
    def is_excessive(self) -> bool:
        return self.seen - self.expected > SIGMAS * math.sqrt(self.variance + 1) + SLACK * self.expected


class Repeats:
    """Watches the blocks of one pool. `block` is the engine's block size."""

    def __init__(self, pool: Pool, block: int) -> None:
        self.pool, self.block, size = pool, block, min(block, pool.spec.k)
        self.first_pb = np.zeros((len(pool.problem_ids), size), dtype=np.uint64)  # digests; 0 is none
        self.first_logp_pb = np.full(self.first_pb.shape, np.nan)
        self.within, self.between = RepeatTest(), RepeatTest()
        # Of blocks; eight bytes each, as there may be millions.
        self.blocks_pb = np.zeros((len(pool.problem_ids), -(-pool.spec.k // block)), dtype=np.uint64)

    def remember(self, drawn_pk: np.ndarray) -> None:
        """Read the first block of every problem from the pool, so that a resumed run is tested too."""
        left = int(np.count_nonzero(drawn_pk[:, : self.first_pb.shape[1]]))
        if not left:
            return
        for chunk in self.pool.scan(["completion", "tokens", "logprob"], limit=self.first_pb.shape[1]):
            columns = chunk.columns.to_pydict()
            digests = [_digest(t, n) for t, n in zip(columns["completion"], columns["tokens"], strict=True)]
            self.first_pb[chunk.problem_r, chunk.index_r] = digests
            self.first_logp_pb[chunk.problem_r, chunk.index_r] = np.array(columns["logprob"], dtype=np.float64)
            left -= len(digests)
            if left <= 0:  # first blocks are written first
                break
        for problem, digest_i in enumerate(self.first_pb):
            self.blocks_pb[problem, 0] = _hash(digest_i[digest_i > 0].tobytes())

    def add(self, problem: int, start: int, completions: Sequence[Completion]) -> None:
        """Count the repeats of a new block. Raises EngineError if it duplicates another block of the problem."""
        digest_i = np.array([_digest(c.text, c.tokens) for c in completions], dtype=np.uint64)
        logp_i = np.array([c.logprob for c in completions], dtype=np.float64)
        self._check_twin(problem, start, digest_i, logp_i)
        self.within.add(digest_i[1:] == digest_i[:-1], logp_i[:-1])
        if start >= self.block:
            known = np.flatnonzero(self.first_pb[problem, : len(digest_i)])
            self.between.add(digest_i[known] == self.first_pb[problem, known], self.first_logp_pb[problem, known])
        else:
            place = slice(start, start + len(digest_i))
            self.first_pb[problem, place], self.first_logp_pb[problem, place] = digest_i, logp_i

    def check(self) -> None:
        """Raises EngineError if completions repeat beyond chance."""
        for where, test in (("within blocks", self.within), ("between blocks", self.between)):
            if test.is_excessive:
                raise EngineError(
                    f"completions of the same problem repeat beyond chance {where}: {test.seen} repeats where "
                    f"{test.expected:.1f} are expected. The seed is ignored or reused, or a cache answers: pass@k "
                    "from such samples would be pass@1. This part was discarded"
                )

    def _check_twin(self, problem: int, start: int, digest_i: np.ndarray, logp_i: np.ndarray) -> None:
        mine, digest = start // self.block, _hash(digest_i.tobytes())
        twins = [int(i) for i in np.flatnonzero(self.blocks_pb[problem] == digest) if i != mine]
        self.blocks_pb[problem, mine] = digest
        if twins and block_log_chance(digest_i, logp_i) < IMPOSSIBLE:
            other = twins[0] * self.block
            raise EngineError(
                f"problem {self.pool.problem_ids[problem]!r}: samples {start} to {start + len(digest_i) - 1} are "
                f"identical to those from {other} on, which is not chance. The engine uses a seed twice: pass@k "
                "from such samples would be pass@1. This part was discarded"
            )


def block_log_chance(digest_i: np.ndarray, logp_i: np.ndarray) -> float:
    """Log of the chance that another block is the same; by shares within the block if log-probabilities are unknown."""
    if not np.isnan(logp_i).any():
        return float(logp_i.sum())
    _, place_i, count_u = np.unique(digest_i, return_inverse=True, return_counts=True)
    return float(np.log(count_u[place_i] / len(digest_i)).sum())


def _digest(text: str | None, tokens: int | None) -> int:
    return _hash(f"{tokens}/{text}".encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") | 1
