"""Merge pools of one model, one task and one setting into one.

The pools may have other problems, other ranges of indices, or both. Samples that two of them have must be the same; two
that differ in a setting, a problem or a sample are refused, naming it, before anything is written. The sources are left
as they are. The same command goes on after a crash. From Python: offleash.eval.merge_pools.

examples:
    offleash merge pools/all pools/part-1 pools/part-2             as several machines drew them (sample --shard 1/2)
    offleash merge pools/base pools/more-problems                  into an existing pool
"""

from offleash.eval.console import say
from offleash.eval.flags import command_parser


def main(argv: list[str]) -> int:
    made = command_parser("merge", __doc__)
    made.add_argument("out", metavar="OUT", help="folder to merge into: new, or one of the pools")
    made.add_argument("pools", metavar="POOL", nargs="+")
    options = made.parse_args(argv)
    from offleash.eval.pool.merge import merge_pools  # and pyarrow with it, which --help need not wait for

    merged = merge_pools(options.out, options.pools)
    pool = merged.pool
    missing = sum(map(len, pool.missing()))
    left = f"; {missing:,} samples are still missing" if missing and pool.spec.plan.successes is None else ""
    say(
        f"{pool.path}: {len(pool.problem_ids):,} problems, {merged.added:,} samples added, {merged.shared:,} were in "
        f"more than one pool{left}"
    )
    return 0
