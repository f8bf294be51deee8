"""A test for completions that repeat more often than chance allows: a seed bug turns pass@k into pass@1.

Two sums over all blocks and problems are kept: repeats within a block, and repeats at the same place of two blocks.
Servers that answer from a cache, seeds that are ignored or used for two blocks, workers that sample the same: all show
up there. Each sum has a known mean and variance.

With log-probabilities: a completion is sampled again with probability exp(its log-probability). Each sample is compared
with the one before it in its block, and with the one at the same place of the problem's first block: given the earlier
of the two, a repeat is a Bernoulli trial with a known probability.

Without: independent samples of one problem can be exchanged. Given which completions were sampled, their order is
random, and what it would give is computed: for the places of a block against the first block (Hoeffding 1951, a
combinatorial central limit theorem), and for two blocks that share their completions at random (Mantel 1967): repeats
that avoid their own block, as of a server that deals out a small store again and again, are no chance either. A model
with few completions repeats itself everywhere alike and raises no alarm. Repeats without any order, of a server that
chooses at random from a small store, cannot be told from such a model without log-probabilities.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offleash.eval.errors import EngineError
from offleash.eval.pool.pool import Pool

IMPOSSIBLE = math.log(1e-9)
SIGMAS = 6.0
SLACK = 0.1
"""Share of the expected repeats that two tokenizations of one text may add."""


class Term(NamedTuple):
    """Repeats seen, and the mean and variance of their number if the samples are independent."""

    seen: int
    expected: float
    variance: float


@dataclass(slots=True)
class RepeatTest:
    """Repeats seen against repeats expected: sums of independent terms with known means and variances."""

    seen: int = 0
    expected: float = 0.0
    variance: float = 0.0

    def add(self, term: "Term") -> None:
        self.seen += term.seen
        self.expected += term.expected
        self.variance += term.variance

    @property
    def is_excessive(self) -> bool:
        return self.seen - self.expected > SIGMAS * math.sqrt(self.variance + 1) + SLACK * self.expected

    @property
    def is_lacking(self) -> bool:
        return self.expected - self.seen > SIGMAS * math.sqrt(self.variance + 1)


class Repeats:
    """Watches the blocks of one pool. `block` is the engine's block size."""

    def __init__(self, pool: Pool, block: int) -> None:
        self.pool, self.block, size = pool, block, min(block, pool.spec.k)
        self.first_pb = np.zeros((len(pool.problem_ids), size), dtype=np.uint64)  # digests; 0 is none
        self.first_logp_pb = np.full(self.first_pb.shape, np.nan)
        self.waiting: dict[
            int, np.ndarray
        ] = {}  # by problem, a block without log-probabilities that has no partner yet
        self.within, self.between = RepeatTest(), RepeatTest()
        self.dealt = RepeatTest()  # those within blocks that are compared with another deal of the same completions
        # Of blocks; eight bytes each, as there may be millions.
        self.blocks_pb = np.zeros((len(pool.problem_ids), -(-pool.spec.k // block)), dtype=np.uint64)

    def remember(self, drawn_pk: np.ndarray) -> None:
        """Read the first block of every problem from the pool, so that a resumed run is tested too."""
        left = int(np.count_nonzero(drawn_pk[:, : self.first_pb.shape[1]]))
        if not left:
            return
        for chunk in self.pool.scan(["completion", "tokens", "logprob"], limit=self.first_pb.shape[1]):
            columns = chunk.columns.to_pydict()
            digests = [digest(t, n) for t, n in zip(columns["completion"], columns["tokens"], strict=True)]
            self.first_pb[chunk.problem_r, chunk.index_r] = digests
            self.first_logp_pb[chunk.problem_r, chunk.index_r] = np.array(columns["logprob"], dtype=np.float64)
            left -= len(digests)
            if left <= 0:  # first blocks are written first
                break
        for problem, digest_i in enumerate(self.first_pb):
            self.blocks_pb[problem, 0] = _hash(digest_i[digest_i > 0].tobytes())

    def add(self, problem: int, start: int, digest_i: np.ndarray, logp_i: np.ndarray) -> None:
        """Count the repeats of a new block: the digests of its completions and their log-probabilities, NaN if unknown.

        Raises EngineError if it duplicates another block of the problem.
        """
        self._check_twin(problem, start, digest_i, logp_i)
        is_known = not np.isnan(logp_i).any()
        if is_known:
            self.within.add(known_repeats(digest_i[1:] == digest_i[:-1], logp_i[:-1]))
        elif (other_i := self.waiting.pop(problem, None)) is None:
            self.waiting[problem] = digest_i
        else:
            term = clustered_repeats(other_i, digest_i)
            self.within.add(term)
            self.dealt.add(term)
        if start >= self.block:
            known = np.flatnonzero(self.first_pb[problem, : len(digest_i)])
            first_i, first_logp_i = self.first_pb[problem, known], self.first_logp_pb[problem, known]
            if is_known and not np.isnan(first_logp_i).any():
                self.between.add(known_repeats(digest_i[known] == first_i, first_logp_i))
            else:
                self.between.add(aligned_repeats(digest_i[known], first_i))
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

        if self.dealt.is_lacking:
            raise EngineError(
                f"completions of the same problem repeat in other blocks and not in their own: {self.dealt.seen} "
                f"repeats within blocks where {self.dealt.expected:.1f} are expected. A small store is dealt out again "
                "and again: pass@k from such samples would be that of the store. This part was discarded"
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


def known_repeats(same_r: np.ndarray, logp_r: np.ndarray) -> Term:
    """Of pairs with the log-probability of their earlier completion."""
    chance_r = np.exp(np.minimum(logp_r, 0.0))
    return Term(int(np.count_nonzero(same_r)), float(chance_r.sum()), float((chance_r * (1 - chance_r)).sum()))


def aligned_repeats(left_i: np.ndarray, right_i: np.ndarray) -> Term:
    """At the same place of two blocks of one size, against all orders of the one.

    With a_ij = 1 where the i-th of the one is the j-th of the other, the mean of sum a_i,order(i) is sum a_ij / n and
    its variance sum d_ij^2 / (n - 1), where d_ij is a_ij less the means of its row and column plus that of all.
    """
    same_ij = (left_i[:, None] == right_i[None, :]).astype(np.float64)
    n, seen = len(left_i), int(np.trace(same_ij))
    if n < 2:
        return Term(0, 0.0, 0.0)
    free_ij = same_ij - same_ij.mean(0) - same_ij.mean(1)[:, None] + same_ij.mean()
    return Term(seen, float(same_ij.sum() / n), float((free_ij**2).sum() / (n - 1)))


def clustered_repeats(left_i: np.ndarray, right_i: np.ndarray) -> Term:
    """Pairs of equal completions inside either of two blocks, against all ways to deal the same completions to them.

    Mantel's moments of sum a_ij b_ij over i != j under a permutation of b, for a = equal, b = in the same block: they
    need of each matrix the sum over pairs, over two pairs that share an end, and over two that do not.
    """
    both_i = np.concatenate([left_i, right_i])
    block_i = np.repeat([0, 1], [len(left_i), len(right_i)])
    n = len(both_i)
    if n < 4:
        return Term(0, 0.0, 0.0)
    same_ij, near_ij = (_off_diagonal(values[:, None] == values[None, :]) for values in (both_i, block_i))
    one, two, apart = (x * y for x, y in zip(_pair_sums(same_ij), _pair_sums(near_ij), strict=True))
    mean = same_ij.sum() * near_ij.sum() / (n * (n - 1))
    square = (2 * one + (4 * two + apart / (n - 3)) / (n - 2)) / (n * (n - 1))
    # Each pair was counted from both of its ends.
    return Term(int((same_ij * near_ij).sum()) // 2, float(mean / 2), float((square - mean**2) / 4))


def _off_diagonal(flag_ij: np.ndarray) -> np.ndarray:
    made = flag_ij.astype(np.float64)
    np.fill_diagonal(made, 0.0)
    return made


def _pair_sums(flag_ij: np.ndarray) -> tuple[float, float, float]:
    one = float(flag_ij.sum())
    stars = float((flag_ij.sum(1) ** 2).sum())
    return one, stars - one, one**2 + 2 * one - 4 * stars


def block_log_chance(digest_i: np.ndarray, logp_i: np.ndarray) -> float:
    """Log of the chance that another block is the same; by shares within the block if log-probabilities are unknown."""
    if not np.isnan(logp_i).any():
        return float(logp_i.sum())
    _, place_i, count_u = np.unique(digest_i, return_inverse=True, return_counts=True)
    return float(np.log(count_u[place_i] / len(digest_i)).sum())


def digest(text: str | None, tokens: int | None) -> int:
    """Of one completion; never 0."""
    return _hash(f"{tokens}/{text}".encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") | 1
