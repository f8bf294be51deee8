"""What keeps the explorer `tilt` from its optimum: a few training problems, measured exactly on these problems.

The optimum of E[R] - tau KL(pi || base) is the reweighting base exp(R / tau) / Z, whose distribution over correct
answers, given correctness, is the base's. On problems that are themselves trained on, generalization plays no part. Two
runs differ in one thing: whether each group of rollouts is completed with texts drawn uniformly from *all* correct ones
of the problem (`--known`), whatever the policy would have drawn. The advantage u - mean(u), u = R - tau log(pi / base),
has the same optimum under any sampling distribution (the gradient of the variance of u), so both runs should end at the
same policy.

    python recipes/lab/tilt_limit.py --known 0
    python recipes/lab/tilt_limit.py --known 8

Shown per step: pass@1, exact NSCR(1e-3) and that of the reweighting at this pass@1, and how the log-share of an answer
among the correct ones has shifted: its standard deviation, and its slope on the log-share in the base (0 at the
optimum; above 0 the likely answers win).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit
from transformers import AutoModelForCausalLM, AutoTokenizer

from offleash.eval.console import say
from offleash.eval.problem import Problem
from offleash.eval.scoring.exact import ExactUnits, exact_units
from offleash.eval.stats.exact_support import exact_support
from offleash.eval.stats.leash.tilt import leash_line
from offleash.eval.tasks import load_task
from offleash.eval.verify.verdicts import verdicts_of
from offleash.train.explorers.advantages.tilt import tilted_advantages

BASE = Path(__file__).parent / "base"
LENGTH = 18
FLOOR = 1e-4
"""Answers below it in the base are left out of the shift."""


def main() -> None:
    args = _parser().parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    lab = Lab(args.problems, args.seed)
    optimum = expit(logit(lab.base_units.problem_probabilities()) + 1 / args.tau).mean()
    say(f"base: pass@1 {lab.base_units.pass_at_1():.3f}; optimum at tau {args.tau:g}: {optimum:.3f}")
    optimizer = torch.optim.AdamW(lab.policy.parameters(), lr=args.learning_rate, weight_decay=0.0)
    for step in range(1, args.steps + 1):
        loss = lab.loss(args.rollouts, args.known, args.tau)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lab.policy.parameters(), 1.0)
        optimizer.step()
        if step % args.every == 0:
            say(f"step {step}: {described(lab.base_units, lab.units(lab.policy))}")


class Lab:
    """The policy, the base and the problems that are trained on, all of them at every step."""

    def __init__(self, problems: int, seed: int) -> None:
        numbers = {"numbers": 4, "max_number": 12, "max_target": 60, "min_solutions": 3, "strict": True}
        self.task: Any = load_task("countdown", split="train", n=problems, **numbers)
        self.tokenizer = AutoTokenizer.from_pretrained(BASE, padding_side="left")
        self.policy, self.base = (AutoModelForCausalLM.from_pretrained(BASE) for _ in range(2))
        self.rng = np.random.default_rng(seed)
        self.known = [self._texts(problem) for problem in self.task.problems]
        self.base_units = self.units(self.base)

    def units(self, model: Any) -> ExactUnits:
        with torch.no_grad():
            return exact_units(model, self.tokenizer, self.task, self.task.problems, max_new_tokens=LENGTH)

    def loss(self, rollouts: int, known: int, tau: float) -> torch.Tensor:
        """`rollouts` of the policy and `known` correct texts for every problem."""
        prompts = self.tokenizer([p.prompt for p in self.task.problems], return_tensors="pt", padding=True)
        ids_pgt = torch.cat([self._drawn(prompts, rollouts), self._given(known)], dim=1)
        n, group = ids_pgt.shape[:2]
        ids_bt = ids_pgt.view(n * group, LENGTH)
        texts = self.tokenizer.batch_decode(ids_bt, skip_special_tokens=True)
        asked = [problem for problem in self.task.problems for _ in range(group)]
        rewards_b = torch.tensor([float(v.correct) for v in verdicts_of(self.task.verify, asked, texts)])
        ended_bt = (ids_bt == self.tokenizer.eos_token_id).float()
        mask_bt = ((ended_bt.cumsum(1) - ended_bt) == 0).float()
        inputs = (prompts["input_ids"], prompts["attention_mask"], ids_bt, mask_bt, group)
        logps_b = _logps(self.policy, *inputs)
        with torch.no_grad():
            base_b = _logps(self.base, *inputs)
        ratios_pg = (logps_b.detach() - base_b).view(n, group)
        advantages_pg = tilted_advantages(rewards_b.view(n, group), ratios_pg, tau)
        return -(advantages_pg.flatten() * logps_b).sum() / mask_bt.sum()

    def _drawn(self, prompts: Any, rollouts: int) -> torch.Tensor:
        with torch.no_grad():
            out = self.policy.generate(
                **{name: prompts[name] for name in ("input_ids", "attention_mask")},
                do_sample=True,
                top_k=0,
                max_new_tokens=LENGTH,
                num_return_sequences=rollouts,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        return self._padded(out[:, prompts["input_ids"].shape[1] :].tolist(), rollouts)

    def _given(self, known: int) -> torch.Tensor:
        chosen = [texts[i] for texts in self.known for i in self.rng.integers(len(texts), size=known)]
        return self._padded(chosen, known)

    def _padded(self, rows: Sequence[list[int]], group: int) -> torch.Tensor:
        pad = self.tokenizer.pad_token_id
        full = [row + [pad] * (LENGTH - len(row)) for row in rows]
        return torch.tensor(full, dtype=torch.long).reshape(len(self.task.problems), group, LENGTH)

    def _texts(self, problem: Problem) -> list[list[int]]:
        answers = self.task.correct_answers(problem)
        texts = [text for answer in answers for text in self.task.spellings(problem, answer)]
        ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [[*row, self.tokenizer.eos_token_id] for row in ids if len(row) < LENGTH]


def described(base: ExactUnits, policy: ExactUnits) -> str:
    found = exact_support(base.probability_u, policy.probability_u, base.unit_problem).units[1e-3]
    line = leash_line(base.probability_u, base.unit_problem, policy.pass_at_1()).support
    share_u, shift_u = log_shares(base), log_shares(policy) - log_shares(base)
    kept = base.probability_u >= FLOOR
    slope = np.polyfit(share_u[kept], shift_u[kept], 1)[0]
    reweighted = "-" if line is None else f"{line.units[1e-3].nscr:+.3f}"
    return (
        f"pass@1 {policy.pass_at_1():.3f}, NSCR(1e-3) {found.nscr:+.3f} (reweighting {reweighted}), "
        f"shift of log-shares: deviation {shift_u[kept].std():.2f}, slope {slope:+.2f}"
    )


def log_shares(units: ExactUnits) -> np.ndarray:
    """The logarithm of each answer's probability given that the answer is correct."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(units.probability_u / units.problem_probabilities()[units.unit_problem]))


def _logps(
    model: Any, prompt_pt: torch.Tensor, there_pt: torch.Tensor, ids_bt: torch.Tensor, mask_bt: torch.Tensor, group: int
) -> torch.Tensor:
    """(B,) of whole completions."""
    start = prompt_pt.shape[1]
    ids = torch.cat([prompt_pt.repeat_interleave(group, 0), ids_bt], dim=1)
    attention = torch.cat([there_pt.repeat_interleave(group, 0), mask_bt.long()], dim=1)
    logits = model(input_ids=ids, attention_mask=attention).logits[:, start - 1 : -1]
    logps_bt = logits.log_softmax(-1).gather(-1, ids_bt[..., None])[..., 0]
    return (logps_bt * mask_bt).sum(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", type=int, default=0, help="correct texts in each group, drawn from all of them")
    parser.add_argument("--rollouts", type=int, default=8, help="of the policy in each group")
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=100, help="steps between measurements")
    parser.add_argument("--tau", type=float, default=0.3)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
