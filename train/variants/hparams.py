"""TensorBoard's HParams page of a sweep: a row per variant, with its verdict and settings beside the results.

The seeds of a variant are one session group, whose metrics the page averages. A run's session is written beside the
run's own event files, so that `tensorboard --logdir OUT` lists no run twice.

The page takes its columns from the first experiment record it finds. `SummaryWriter.add_hparams` writes a record per
run with only that run's keys, so one record with the keys of all runs is written here; TensorBoard's own helpers need
TensorFlow.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import DataType, Experiment, HParamInfo, MetricInfo, MetricName, Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from torch.utils.tensorboard import SummaryWriter

from offleash.train.explorers.metrics import VARIANT
from offleash.train.run_folder.folder import events_folder
from offleash.train.variants.results import METRICS, Measured

Setting = float | str | bool
_SUFFIX = ".hparams"
_VERDICT = "verdict"
_FOLDER = "tensorboard"
"""Of what all runs share."""


def write_hparams(
    out: Path,
    runs: Sequence[Measured],
    settings: Mapping[str, Mapping[str, Any]],
    verdicts: Mapping[str, str] | None = None,
    titles: Mapping[str, str] = METRICS,
) -> None:
    """Write event files into the runs' folders and OUT/tensorboard, replacing those of an earlier report.

    `settings`: variant -> the overlay's settings when its runs were started. `verdicts`: variant -> what was judged.
    `titles`: the metrics of the runs that have a column, in order.
    """
    shutil.rmtree(out / _FOLDER, ignore_errors=True)
    of_runs = [
        {
            "variant": run.variant,
            **({_VERDICT: verdicts.get(run.variant, "")} if verdicts is not None else {}),
            **_flat(settings[run.variant]),
        }
        for run in runs
    ]
    with SummaryWriter(str(out / _FOLDER)) as writer:
        writer._get_file_writer().add_summary(_experiment(of_runs, titles))
    for run, of_run in zip(runs, of_runs, strict=True):
        _write_session(_event_folder(out / run.variant / f"seed-{run.seed}"), run, of_run)


def _event_folder(run: Path) -> Path:
    """Where the run's own event files are, without ours of an earlier report."""
    for file in run.rglob(f"events.out.tfevents.*{_SUFFIX}"):
        file.unlink()
    own = min(run.rglob("events.out.tfevents.*"), default=None)
    return events_folder(run) if own is None else own.parent


def _write_session(folder: Path, run: Measured, settings: Mapping[str, Setting]) -> None:
    start = SessionStartInfo(group_name=run.variant)
    for key, value in settings.items():
        _put(start.hparams[key], value)
    with SummaryWriter(str(folder), filename_suffix=_SUFFIX) as writer:
        events = writer._get_file_writer()
        events.add_summary(_summary(metadata.SESSION_START_INFO_TAG, session_start_info=start))
        for step, metrics in zip(run.steps, run.series, strict=True):
            for key, value in metrics.items():
                if math.isfinite(value):
                    writer.add_scalar(VARIANT.fill(metric=key).tag, value, step)
        end = SessionEndInfo(status=Status.Value("STATUS_SUCCESS"))
        events.add_summary(_summary(metadata.SESSION_END_INFO_TAG, session_end_info=end))


def _experiment(of_runs: Sequence[Mapping[str, Setting]], titles: Mapping[str, str]) -> Summary:
    infos = []
    for key in dict.fromkeys(key for of_run in of_runs for key in of_run):
        found = list(dict.fromkeys(of_run[key] for of_run in of_runs if key in of_run))
        # The page shows few columns at first: those that `differ`, then by name.
        infos.append(HParamInfo(name=key, type=_type(found), differs=key == _VERDICT))
        for value in found:
            _put(infos[-1].domain_discrete.values.add(), value)
    metrics = [
        MetricInfo(name=MetricName(tag=VARIANT.fill(metric=key).tag), display_name=title)
        for key, title in titles.items()
    ]
    return _summary(metadata.EXPERIMENT_TAG, experiment=Experiment(hparam_infos=infos, metric_infos=metrics))


def _summary(tag: str, **content: Any) -> Summary:
    data = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data)
    return Summary(
        value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=metadata.NULL_TENSOR)]
    )


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Setting]:
    """`{explorer: {pass_at_k: {k: 4}}}` -> `{"explorer.pass_at_k.k": 4.0}`."""
    found: dict[str, Setting] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{above}{key}.")
        elif isinstance(value, bool | str):
            found[f"{above}{key}"] = value
        elif isinstance(value, int | float):
            found[f"{above}{key}"] = float(value)
        else:
            found[f"{above}{key}"] = json.dumps(value, default=str)
    return found


def _type(values: Sequence[Setting]) -> Any:
    kinds = {type(value) for value in values}
    names = {bool: "DATA_TYPE_BOOL", float: "DATA_TYPE_FLOAT64", str: "DATA_TYPE_STRING"}
    return DataType.Value(names[kinds.pop()] if len(kinds) == 1 else "DATA_TYPE_STRING")


def _put(target: Any, value: Setting) -> None:
    """Into a protobuf Value."""
    kind = "bool_value" if isinstance(value, bool) else "number_value" if isinstance(value, float) else "string_value"
    setattr(target, kind, value)
