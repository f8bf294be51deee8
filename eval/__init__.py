"""From problems to numbers: sample a model, verify, keep a pool, compare pools. Knows nothing of training.

The names below are the public ones. Each is imported when it is first used, so that `import offleash.eval` stays light.
"""

from typing import TYPE_CHECKING

from offleash.eval.registry import lazy

if TYPE_CHECKING:
    from offleash.eval.comparison.compare import compare
    from offleash.eval.errors import OffleashError
    from offleash.eval.pool.pool import Pool
    from offleash.eval.pool.sample import sample_pool
    from offleash.eval.problem import Problem, Task, Verdict
    from offleash.eval.report.write import write_report
    from offleash.eval.sampling import Sampling
    from offleash.eval.scoring.pool_scores import score_pool
    from offleash.eval.stats.entropy import answer_entropy
    from offleash.eval.stats.intervals import Estimate
    from offleash.eval.stats.noise import noise_test
    from offleash.eval.stats.passk import pass_at_k
    from offleash.eval.stats.support import dynamics
    from offleash.eval.tasks import load_task

__all__ = [
    "Estimate",
    "OffleashError",
    "Pool",
    "Problem",
    "Sampling",
    "Task",
    "Verdict",
    "answer_entropy",
    "compare",
    "dynamics",
    "load_task",
    "noise_test",
    "pass_at_k",
    "sample_pool",
    "score_pool",
    "write_report",
]

_HOMES = {
    "Estimate": "stats.intervals",
    "OffleashError": "errors",
    "Pool": "pool.pool",
    "Problem": "problem",
    "Sampling": "sampling",
    "Task": "problem",
    "Verdict": "problem",
    "answer_entropy": "stats.entropy",
    "compare": "comparison.compare",
    "dynamics": "stats.support",
    "load_task": "tasks",
    "noise_test": "stats.noise",
    "pass_at_k": "stats.passk",
    "sample_pool": "pool.sample",
    "score_pool": "scoring.pool_scores",
    "write_report": "report.write",
}
__getattr__ = lazy(__name__, _HOMES)
