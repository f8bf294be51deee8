"""Exact probabilities of every correct answer of the lab: completions as trees against one row for each.

    python bench/exact.py --problems 32

Both ways use the same model and the same texts, one after the other in one process, by CPU time.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offleash import recipes
from offleash.eval.engines.model import resolve_model
from offleash.eval.pool.settings import ModelSettings
from offleash.eval.scoring.exact import exact_units
from offleash.eval.scoring.teacher_forcing import load_model, score
from offleash.eval.tasks import load_task


def main(argv: Sequence[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=32)
    options = parser.parse_args(argv)
    task = load_task("countdown", split="probe", n=options.problems)
    source = resolve_model(str(Path(recipes.__path__[0]) / "lab" / "base"), dtype=ModelSettings().dtype)
    model, tokenizer = load_model(source), source.tokenizer
    exact_units(model, tokenizer, task, task.problems[:1])
    start = time.process_time()
    units = exact_units(model, tokenizer, task, task.problems)
    trees = time.process_time() - start
    prompts = tokenizer([str(problem.prompt) for problem in task.problems])["input_ids"]
    completions = np.split(units.token_id_i, np.cumsum(units.tokens_t)[:-1])
    start = time.process_time()
    alone = score(
        model, [prompts[units.unit_problem[u]] for u in units.text_unit], [ids.tolist() for ids in completions]
    )
    rows = time.process_time() - start
    difference = np.abs(alone.logprob_s - units.logprob_t).max()
    print(f"{len(units.unit_answer)} answers, {len(units.texts)} texts, {units.tokens_t.sum()} tokens")
    print(f"trees {trees:.2f} s, rows {rows:.2f} s: {trees / rows:.3f}; largest difference {difference:.1e} nats")
    return [("exact probabilities: CPU time of trees against rows", trees / rows)]


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main(["--problems", "8"])


if __name__ == "__main__":
    main()
