"""How near a network gets to the leash line: the reweighted base itself, fitted to samples, measured on other problems.

The line "KL-optimal reweighting of the base" is base exp(R / beta) / Z on each problem, and R, the verifier, is asked
about every answer. A policy has to tell correct answers of new problems from wrong ones by itself. Here nothing else
stands in its way: no rollouts, no exploration, no advantage. Completions of training problems are drawn from the base,
and the policy is fitted to the reweighting by maximum likelihood, on weights w = exp(R / beta) / Z with a mean of 1 on
each problem. E[w log pi] is E[(w - 1) log pi] + E[log pi] under the base, and the second term is computed token by
token over the whole vocabulary, so that the fit has as little noise as such samples allow.

    python recipes/lab/fitted.py lab_colouring
    python recipes/lab/fitted.py lab_colouring --problems 8192 --k 16 --steps 512      # seven times the samples

Shown: pass@1 and exact NSCR(1e-3) on validation problems, and in brackets the line at that pass@1. The samples are a
pool in --pool, which a second call continues or uses again.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from offleash.eval import Pool, Sampling, load_task, sample_pool
from offleash.eval.console import say
from offleash.eval.engines.model import resolve_model
from offleash.eval.scoring.exact import exact_units
from offleash.eval.stats.exact_support import exact_support
from offleash.eval.stats.leash.tilt import leash_line
from offleash.train.recipe.catalogue import find_recipe
from offleash.train.recipe.config import read_recipe_file

VALIDATION = 128


def main() -> None:
    args = _parser().parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    lab = Lab(args.lab)
    pool = lab.sampled(args.pool or Path("pools") / f"{args.lab}-base", args.problems, args.k)
    samples = Weighed(pool, args.beta)
    say(f"{len(samples.texts):,} samples of {args.problems:,} problems, {samples.correct_b.mean():.3f} correct")
    optimizer = torch.optim.AdamW(lab.policy.parameters(), lr=args.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, args.steps)
    rng, waiting = np.random.default_rng(args.seed), np.empty(0, dtype=np.int64)
    for step in range(1, args.steps + 1):
        if len(waiting) < args.batch:
            waiting = rng.permutation(len(samples.texts))
        rows, waiting = waiting[: args.batch], waiting[args.batch :]
        optimizer.zero_grad()
        lab.loss(samples, rows).backward()
        torch.nn.utils.clip_grad_norm_(lab.policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % args.every == 0:
            say(f"step {step}: {lab.measured()}")


class Weighed:
    """The samples of a pool, and the weight that the reweighted base gives to each."""

    def __init__(self, pool: Pool, beta: float) -> None:
        rows = pool.read(["problem_id", "completion", "correct", "status"])
        self.texts: list[str] = rows["completion"].to_pylist()
        self.ended_b = np.array([status != "truncated" for status in rows["status"].to_pylist()])
        self.correct_b = np.array(rows["correct"].to_pylist(), dtype=float)
        prompts = {problem.id: str(problem.prompt) for problem in pool.problems}
        ids = rows["problem_id"].to_pylist()
        self.prompts = [prompts[problem_id] for problem_id in ids]
        _, problem_b = np.unique(ids, return_inverse=True)
        rewarded_b = np.exp(self.correct_b / beta)
        mean_p = np.bincount(problem_b, rewarded_b) / np.bincount(problem_b)
        self.weight_b = rewarded_b / mean_p[problem_b]


class Lab:
    """A lab's policy and base, with the problems that it trains on and is measured on."""

    def __init__(self, name: str) -> None:
        self.name, self.recipe = name, read_recipe_file(find_recipe(name))
        self.length: int = self.recipe["max_completion_length"]
        folder = resolve_model(name).path
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right")
        self.policy, self.base = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
        self.validation = self._task("validation", VALIDATION)
        self.base_units = self._units(self.base)

    def sampled(self, path: Path, problems: int, k: int) -> Pool:
        sampling = Sampling(max_new_tokens=self.length)
        return sample_pool(self.name, self._task("train", problems), path, k=k, sampling=sampling)

    def loss(self, samples: Weighed, rows: np.ndarray) -> torch.Tensor:
        """Per sample; its gradient is that of the divergence of the reweighted base from the policy."""
        ids_bt, there_bt, drawn_bt = self._batch(samples, rows)
        inputs = {"input_ids": ids_bt, "attention_mask": there_bt}
        logps_btv = self.policy(**inputs).logits[:, :-1].log_softmax(-1)
        with torch.no_grad():
            base_btv = self.base(**inputs).logits[:, :-1].log_softmax(-1)
        logps_bt = logps_btv.gather(-1, ids_bt[:, 1:, None])[..., 0]
        excess_b1 = torch.tensor(samples.weight_b[rows] - 1, dtype=torch.float32)[:, None]
        from_base_bt = (base_btv.exp() * (base_btv - logps_btv)).sum(-1)
        return ((from_base_bt - excess_b1 * logps_bt) * drawn_bt[:, 1:]).sum() / len(rows)

    def measured(self) -> str:
        units, base = self._units(self.policy), self.base_units
        found = exact_support(base.probability_u, units.probability_u, base.unit_problem).units[1e-3]
        line = leash_line(base.probability_u, base.unit_problem, units.pass_at_1()).support
        reweighted = "-" if line is None else f"{line.units[1e-3].nscr:+.3f}"
        return (
            f"pass@1 {units.pass_at_1():.3f}, NSCR(1e-3) {found.nscr:+.3f} ({reweighted}), "
            f"{found.shrunk} lost, {found.expanded} gained"
        )

    def _task(self, split: str, n: int) -> Any:
        return load_task(self.recipe["task"], **{**self.recipe["train_args"], "split": split, "n": n})

    def _units(self, model: Any) -> Any:
        with torch.no_grad():
            return exact_units(
                model, self.tokenizer, self.validation, self.validation.problems, max_new_tokens=self.length
            )

    def _batch(self, samples: Weighed, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids of prompts and completions, what of them is not padding, and what of them was drawn."""
        prompts = self.tokenizer([samples.prompts[i] for i in rows])["input_ids"]
        drawn = self.tokenizer([samples.texts[i] for i in rows], add_special_tokens=False)["input_ids"]
        ends = [[self.tokenizer.eos_token_id] if samples.ended_b[i] else [] for i in rows]
        texts = [[*one, *other, *end] for one, other, end in zip(prompts, drawn, ends, strict=True)]
        full = self.tokenizer.pad({"input_ids": texts}, return_tensors="pt")
        ids_bt, there_bt = full["input_ids"], full["attention_mask"]
        starts_b1 = torch.tensor([len(one) for one in prompts])[:, None]
        return ids_bt, there_bt, there_bt * (torch.arange(ids_bt.shape[1]) >= starts_b1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", choices=["lab", "lab_colouring", "lab_change"])
    parser.add_argument("--problems", type=int, default=1024, help="that the base is sampled on")
    parser.add_argument("--k", type=int, default=18, help="samples of each: 18,432 in all, as many as a run may have")
    parser.add_argument("--beta", type=float, default=0.2, help="the smaller, the higher pass@1")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--every", type=int, default=40, help="steps between measurements")
    parser.add_argument("--learning-rate", type=float, default=4e-4)
    parser.add_argument("--pool", type=Path, help="folder of the samples (default: pools/LAB-base)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
