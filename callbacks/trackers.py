"""What `report_to` asked for gets our metrics under our own tags; TensorBoard also gets a layout, a figure and a table.

The Trainer would put every tag under `train/`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import log_to_trackio, log_to_wandb
from offleash.callbacks.tags import (
    ANSWER_ENTROPY,
    EXACT_NSCR,
    LEASH,
    LEASH_NSCR,
    PROBLEM,
    SPELLING,
    UNIT,
    Metric,
    at_floor,
    leash_pass_at,
    pass_at,
    token_entropy,
)
from offleash.eval.comparison.changes import Change
from offleash.eval.report.figure_style import LINES, styled
from offleash.eval.report.sanitize import markdown_text, one_line


class Trackers:
    """The trainer's reporting callbacks, written to directly. Only the main process has them open."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer

    @property
    def tensorboard(self) -> Any:
        """The SummaryWriter of the Trainer's TensorBoard callback; None if there is none or it is closed."""
        return next((cb.tb_writer for cb in self._callbacks(TensorBoardCallback)), None)

    def destinations(self) -> Iterator[tuple[str, Callable[[Mapping[str, float], int], None]]]:
        """Each open tracker: its name, and what writes metrics to it. Undefined numbers (NaN) leave a gap."""
        if (writer := self.tensorboard) is not None:
            yield "TensorBoard", partial(to_tensorboard, writer)
        for name, kind, log in (("W&B", WandbCallback, log_to_wandb), ("trackio", TrackioCallback, log_to_trackio)):
            for callback in self._callbacks(kind):
                yield name, partial(_to_log, partial(log, callback))

    def _callbacks(self, kind: type) -> list[Any]:
        return [cb for cb in self.trainer.callback_handler.callbacks if isinstance(cb, kind)]


def to_tensorboard(writer: Any, metrics: Mapping[str, float], step: int) -> None:
    for tag, value in _finite(metrics).items():
        writer.add_scalar(tag, value, step)
    writer.flush()


def _to_log(log: Callable[[dict[str, float]], None], metrics: Mapping[str, float], step: int) -> None:
    log({**_finite(metrics), "train/global_step": step})


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in metrics.items() if math.isfinite(value)}


def custom_layout(temperature: float, k: int, exact: bool = False) -> dict[str, dict[str, list[Any]]]:
    """The custom-scalars page: pass@1 and NSCR on top, both entropies on one chart below; `exact`: by enumeration."""

    def lines(*tags: str) -> list[Any]:
        return ["Multiline", [f"^{tag}$" for tag in tags]]

    def both(metric: Metric) -> tuple[str, str]:
        return metric.tag, metric.base

    by_enumeration = {
        f"NSCR({eps:g}), policy and KL-optimal reweighting of the base at this pass@1": lines(
            at_floor(EXACT_NSCR, eps).tag, at_floor(LEASH_NSCR, eps).tag
        )
        for eps in (1e-2, 1e-3, 1e-4)
    }
    return {
        **({"Exact": by_enumeration} if exact else {}),
        "The leash": {
            "pass@1, policy and base": lines(*both(pass_at(1))),
            "NSCR of units, policy and KL-optimal reweighting of the base at this pass@1": lines(
                UNIT.nscr.tag, LEASH.nscr.tag
            ),
            "NSCR of units, problems, spellings": lines(UNIT.nscr.tag, PROBLEM.nscr.tag, SPELLING.nscr.tag),
            f"pass@{k}, policy, base and reweighted base": lines(*both(pass_at(k)), leash_pass_at(k).tag),
            "units lost and gained": lines(UNIT.shrunk.tag, UNIT.expanded.tag, UNIT.expected_shrunk.tag),
        },
        "Entropy": {
            "token and answer entropy (nats)": lines(*both(token_entropy(temperature)), *both(ANSWER_ENTROPY)),
            "SRR and NDR": lines(UNIT.srr.tag, UNIT.ndr.tag),
        },
    }


@styled()
def pass_at_k_figure(
    base: Mapping[int, float], policy: Mapping[int, float], step: int, leash: Mapping[int, float], title: str = ""
) -> Any:
    """Base, policy and the reweighted base (`leash`, {} if unknown) over k, on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 4.0))
    axes = figure.subplots()
    axes.plot(list(base), list(base.values()), **LINES["base"], label="base")
    axes.plot(list(policy), list(policy.values()), **LINES["policy"], label=f"policy, step {step}")
    if leash:
        words = "KL-optimal reweighting of the\nbase at this pass@1"
        axes.plot(list(leash), list(leash.values()), **LINES["leash"], label=words)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(base), [str(k) for k in base])
    axes.set(xlabel="k", ylabel="pass@k", ylim=(0, 1.02))
    axes.set_title(one_line(title, 40), parse_math=False)
    axes.legend(loc="lower right")
    return figure


def lost_and_gained_table(lost: Sequence[Change], gained: Sequence[Change], limit: int = 20) -> str:
    """A Markdown table of units lost and gained. Model text is untrusted: escaped, on one line, truncated."""
    rows = ["| | problem | answer | base hits | policy hits |", "|---|---|---|---|---|"]
    for word, changes in (("lost", lost), ("gained", gained)):
        for change in changes[:limit]:
            problem, answer = (markdown_text(one_line(text)) for text in (change.problem_id, change.answer))
            hits = f"{change.base_hits}/{change.base_n} | {change.policy_hits}/{change.policy_n}"
            rows.append(f"| {word} | {problem} | {answer} | {hits} |")
        if len(changes) > limit:
            rows.append(f"| {word} | and {len(changes) - limit} more | | | |")
    return "\n".join(rows) if len(rows) > 2 else "nothing lost, nothing gained"
