"""The table of tags: complete, resolvable, and the only place where a tag is written out."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from offleash.callbacks import RolloutCallback, SupportCallback, tags
from offleash.callbacks.charts import charts
from offleash.callbacks.tags import METRICS, Metric, pass_at, token_entropy
from offleash.eval.stats.exact_support import EPSILONS
from offleash.eval.stats.passk import TAUS
from offleash.eval.stats.support import STABLE_HITS
from offleash.eval.tasks import load_task
from offleash.train.explorers import EXPLORERS, load_explorers
from offleash.train.explorers import metrics as training

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "callbacks" / "tags.py", ROOT / "train" / "explorers" / "metrics.py")
ALL = (*METRICS, *training.METRICS)


def resolved(path: str) -> Any:
    """Of the longest prefix that is a module, the attribute that the rest names."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(["offleash", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.tag)
def test_the_function_named_beside_a_tag_exists(metric: Metric) -> None:
    made = resolved(metric.made_by)
    assert callable(made) or isinstance(made, property)


def test_no_tag_is_listed_twice_and_no_constant_is_missing() -> None:
    names = [name for metric in ALL for name in (metric.tag, metric.base) if name]
    assert len(names) == len(set(names))
    defined = {value for table in (tags, training) for value in vars(table).values() if isinstance(value, Metric)}
    assert defined <= set(ALL)
    assert all(metric.unit and metric.meaning for metric in ALL)


def test_patterns_are_filled_in_one_way() -> None:
    assert pass_at(1_048_576)[::4] == ("pass_at_k/1048576", "pass_at_k/base/1048576")
    assert token_entropy(1.0)[::4] == ("entropy/token_T1", "entropy/base/token_T1")
    assert token_entropy(0.7).tag == "entropy/token_T0.7"
    assert tags.at_floor(tags.LEASH_NSCR, 1e-6).tag == "exact/leash/nscr_1e-6"
    assert tags.cover_at(0.8)[::4] == ("cover_at_tau/0.8", "cover_at_tau/base/0.8")
    assert training.OWN.fill(name="mine").key == "explorer/mine"
    assert STABLE_HITS == 5  # the tags say so


def test_a_tag_is_written_out_in_the_table_and_nowhere_else_in_the_product() -> None:
    groups = {metric.tag.removeprefix("train/").split("/")[0] for metric in ALL}
    groups.remove("variants")  # also a folder of recipes
    literal = re.compile(rf"""["'](train/)?({"|".join(groups)})/[^"' ]*["']""")
    product = [path for room in ("eval", "callbacks", "train") for path in (ROOT / room).rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in product
        if path not in TABLES and literal.search(path.read_text(encoding="utf-8"))
    }
    assert found == set()
    for tag in ("support/unit/nscr", "entropy/base/answer", "train/explorer/extra_loss"):
        assert sum(f'"{tag}"' in path.read_text() for path in TABLES) == 1


def test_every_explorer_logs_what_the_table_says() -> None:
    known = {metric.tag.rpartition("/")[2] for metric in training.METRICS}
    required = {"pass_at_k": {"k": 2}, "pkpo": {"k": 2}, "reference_reset": {"every": 1}}
    for name in EXPLORERS:
        (explorer,) = load_explorers({name: required.get(name, {})})
        assert set(explorer.metrics()) <= known, name


def test_a_run_writes_the_tags_of_the_table_and_no_others(make_trainer, read_tags, tmp_path) -> None:
    trainer = make_trainer(max_steps=3, learning_rate=1e-5)
    task = load_task("countdown", split="train", n=64)
    probe = load_task("countdown", split="probe", n=12, strict=True)
    trainer.add_callback(SupportCallback(trainer, probe, k=33, every=1, importance=True, exact=True))
    trainer.add_callback(RolloutCallback(trainer, task))
    trainer.train()
    steps = read_tags(tmp_path / "run" / "tensorboard")
    ours = {tag.removesuffix("/text_summary") for tag in steps if "/" in tag}
    ours = {tag for tag in ours if not tag.startswith("train/") or tag in {metric.tag for metric in training.METRICS}}
    by_training = {training.VERIFIER_FAILED.tag, training.TIMED_OUT.tag}
    assert ours - {"args", "model_config"} == _a_run_can_write(1, 2, 4, 8, 16, 32) | by_training
    for metric in tags.ONCE:
        assert steps[metric.tag] == [0]
    assert steps["exact/lost"] == steps["support/unit/nscr"] == steps["pass_at_k/1"] == [0, 1, 2, 3]
    assert (
        steps["pass_at_k/base/1"] == steps["noise/unit/srr_hits5_low"] == steps["noise/unit/srr_hits5"] == [0, 1, 2, 3]
    )
    for chart in (chart for found in charts(1.0, 32, exact=True).values() for chart in found):
        for series in chart.series:  # TensorBoard draws no band whose ends were logged at other steps than its value
            assert steps[series.lower] == steps[series.upper] == steps[series.value] == [0, 1, 2, 3], chart.title


def _a_run_can_write(*ks: int) -> set[str]:
    """Without vLLM, and with no unit lost by enumeration; base and policy alike."""
    absent = {tags.SERVED_DIFFERENCE, tags.LOST_AT_FIRST_TOKEN, tags.LOST_AT_BRANCHING}
    absent |= {tags.STILL_EXECUTABLE, tags.STILL_EXECUTABLE_BASE}
    patterns = {tags.PASS_AT_K: [pass_at(k) for k in ks], tags.TOKEN_ENTROPY: [token_entropy(1.0)]}
    for metric in (tags.EXACT_NSCR, tags.LEASH_NSCR):
        patterns[metric] = [tags.at_floor(metric, eps) for eps in EPSILONS]
    patterns[tags.LEASH_PASS_AT_K] = [tags.leash_pass_at(k) for k in ks]
    patterns[tags.COVER_AT_TAU] = [tags.cover_at(tau) for tau in TAUS]
    metrics = [m for metric in METRICS if metric not in absent for m in patterns.get(metric, [metric])]
    return {tag for metric in metrics for tag in (metric.tag, metric.base) if tag}
