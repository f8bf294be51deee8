"""Judge the stored completions of a pool again, after the verifier changed. Nothing is sampled.

All verdicts are replaced at once: a pool never holds verdicts of two verifiers, and until the last completion is judged
the former ones hold. The same command goes on after a crash. The task must have the problems of the pool, so give the
--task and --task-args, or the --data and its columns, that it was sampled with. `offleash sample` does the same by
itself if it finds a pool that differs in nothing but the verifier. From Python: offleash.eval.rejudge_pool.

examples:
    offleash rejudge pools/base                                    by the task that the pool names
    offleash rejudge pools/mine --task my_module:MyTask
    offleash rejudge pools/lab --task-args '{"split": "probe", "n": 200}'
    offleash rejudge pools/bench --data bench.jsonl --question problem --gold answer --verifier math
"""

from offleash.eval.commands.data_flags import add_own_benchmark, one_task
from offleash.eval.console import say
from offleash.eval.flags import command_parser


def main(argv: list[str]) -> int:
    made = command_parser("rejudge", __doc__)
    made.add_argument("pool", metavar="POOL")
    made.add_argument("--task", help="a name (offleash tasks lists them) or my_module:MyTask; default: the pool's")
    made.add_argument("--task-args", default="{}", metavar="JSON", help="arguments of the task")
    made.add_argument(
        "--max-verifier-failures",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="share of verdicts that may fail before judging stops (default 0.01)",
    )
    add_own_benchmark(made.add_argument_group("a benchmark of your own"))
    options = made.parse_args(argv)
    task, task_args = one_task(options)
    from offleash.eval.pool.rejudge import rejudge_pool  # and pyarrow with it, which --help need not wait for

    done = rejudge_pool(
        options.pool,
        task,
        task_args=task_args,
        max_verifier_failures=options.max_verifier_failures,
    )
    say(f"{done.pool.path}: {done} (verifier {done.pool.spec.task_version})")
    return 0
