"""How a measured step is told: its scalars, figure and table, the line on the console, the record in the run's folder.

Functions of plain numbers, used by the callback inside a run and by a watcher beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offleash.callbacks import tags
from offleash.callbacks.charts import moves_figure, pass_at_k_figure, with_whole_bands
from offleash.callbacks.counted import Counted
from offleash.callbacks.metrics import leash_curve, pass_curve, sampled
from offleash.callbacks.summary import moved_words, path_from, spelling_words, unit_words
from offleash.callbacks.trackers import Media
from offleash.eval.comparison.changes import changes
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.stats.passk import powers_of_two

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metrics = Mapping[str, float]


def step_scalars(metrics: Metrics, is_first: bool) -> dict[str, float]:
    """What is logged of a step: constants of a run only at the first, bands only around numbers."""
    constants = () if is_first else [metric.tag for metric in tags.ONCE]
    return {tag: value for tag, value in with_whole_bands(metrics).items() if tag not in constants}


def base_scalars(base: Metrics, k: int, temperature: float) -> dict[str, float]:
    """The base's constants, logged at every measured step beside the policy's: `callbacks.charts` draws the gap."""
    return {metric.base: base[metric.tag] for metric in sampled(k, temperature) if metric.base}


def run_figures(base: Metrics, steps: Mapping[int, Metrics], k: int, task: str) -> dict[str, "Figure"]:
    """By tag: pass@k, and what was lost and gained, at these steps."""
    curves, last = {step: pass_curve(metrics, k) for step, metrics in steps.items()}, steps[max(steps)]
    return {
        tags.PASS_AT_K_FIGURE.tag: pass_at_k_figure(pass_curve(base, k), curves, leash_curve(last, k), task),
        tags.MOVES_FIGURE.tag: moves_figure(steps, unit_words(last), task),
    }


def step_media(base: tuple[Metrics, Hits], steps: Mapping[int, Metrics], policy: Hits, k: int, task: str) -> Media:
    """The figures of the steps so far, and the table of the last, whose hits are those of `policy`."""
    return Media(run_figures(base[0], steps, k, task), *changes(base[1], policy))


def step_line(step: int, metrics: Metrics, k: int) -> str:
    """The line on the console."""
    top = powers_of_two(k)[-1]
    return (
        f"offleash: step {step}: pass@1 {metrics[tags.pass_at(1).tag]:.3f}, "
        f"pass@{top} {metrics[tags.pass_at(top).tag]:.3f}, "
        f"{moved_words(metrics)}{spelling_words(metrics)} ({metrics[tags.SECONDS.tag]:.1f} s)"
    )


def record_of(
    folder: Path,
    k: int,
    temperature: float,
    base_pool: Pool | None,
    base: Counted | None,
    base_metrics: Metrics,
    steps: Mapping[int, Metrics],
) -> dict[str, Any]:
    """What `summary.write_record` keeps of the run in `folder`."""
    return {
        "k": k,
        "token_entropy": tags.token_entropy(temperature).tag,
        "base_pool": path_from(folder, base_pool.path) if base_pool else None,
        "probe": base_pool.spec.problems if base_pool else None,
        "base_hits": base.hits.checksum() if base else None,
        "base": base_metrics,
        "steps": steps,
    }


def check_same_base(record: Mapping[str, Any], folder: Path, name: str, spec: PoolSpec) -> None:
    """Raises ConfigError if the steps on record were measured against another base pool than that of this name."""
    if not record:
        return
    before = (Path(record["base_pool"]).name, record["k"], record.get("probe") or spec.problems)
    wanted = (name, spec.k, spec.problems)
    if before != wanted:
        first, now = (f"{pool} (k = {k}, problems {probe[:8]})" for pool, k, probe in (before, wanted))
        raise ConfigError(
            f"{folder} was measured against the base pool {first}, and this asks for {now}: keep the model, the probe "
            "problems and their verifier, k, successes, seed and sampling settings of the monitor unchanged, or start "
            "another run"
        )


def check_same_samples(record: Mapping[str, Any], folder: Path, pool: Path, base: Counted) -> None:
    """Raises PoolError if the base pool no longer holds what the steps on record were measured against."""
    if record.get("base_hits") not in (None, base.hits.checksum()):
        raise PoolError(
            f"{pool} does not hold the samples that the earlier steps of {folder} were measured against: restore "
            "that pool, or start another run"
        )
