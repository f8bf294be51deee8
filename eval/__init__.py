"""From problems to numbers: sample a model, verify, keep a pool, compare pools. Knows nothing of training.

The names below are the public ones. Each is imported when it is first used, so that `import offleash.eval` stays light.
"""

from typing import TYPE_CHECKING

from offleash.eval.registry import lazy

if TYPE_CHECKING:
    from offleash.eval.comparison.compare import compare as compare
    from offleash.eval.errors import OffleashError as OffleashError
    from offleash.eval.pool.merge import merge_pools as merge_pools
    from offleash.eval.pool.pool import Pool as Pool
    from offleash.eval.pool.rejudge import rejudge_pool as rejudge_pool
    from offleash.eval.pool.sample import sample_pool as sample_pool
    from offleash.eval.problem import Problem as Problem
    from offleash.eval.problem import Task as Task
    from offleash.eval.problem import Verdict as Verdict
    from offleash.eval.report.write import write_report as write_report
    from offleash.eval.sampling import Sampling as Sampling
    from offleash.eval.scoring.pool_scores import score_pool as score_pool
    from offleash.eval.stats.entropy import answer_entropy as answer_entropy
    from offleash.eval.stats.intervals import Estimate as Estimate
    from offleash.eval.stats.leash.tilt import leash_line as leash_line
    from offleash.eval.stats.noise import noise_test as noise_test
    from offleash.eval.stats.passk import pass_at_k as pass_at_k
    from offleash.eval.stats.support import dynamics as dynamics
    from offleash.eval.tasks import load_task as load_task
    from offleash.eval.tasks.dataset_task import task_from_dataset as task_from_dataset
    from offleash.eval.tasks.trl_spec import for_trl as for_trl

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
    "for_trl": "tasks.trl_spec",
    "leash_line": "stats.leash.tilt",
    "load_task": "tasks",
    "merge_pools": "pool.merge",
    "noise_test": "stats.noise",
    "pass_at_k": "stats.passk",
    "rejudge_pool": "pool.rejudge",
    "sample_pool": "pool.sample",
    "score_pool": "scoring.pool_scores",
    "task_from_dataset": "tasks.dataset_task",
    "write_report": "report.write",
}
__all__ = list(_HOMES)
__getattr__ = lazy(__name__, _HOMES)
