"""Read back by TensorBoard's own HParams backend."""

from pathlib import Path

import pytest
from tensorboard import context
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler
from torch.utils.tensorboard import SummaryWriter

from offleash.train.variants.hparams import write_hparams
from offleash.train.variants.results import METRICS


@pytest.fixture
def page(tmp_path, full_sweep):
    """The experiment and the session groups that the page would show."""
    settings = {"pass_at_k": {"explorer": {"pass_at_k": {"k": 4}}}, "low_lr": {"learning_rate": 1e-5, "bf16": True}}
    names = list(dict.fromkeys(run.variant for run in full_sweep.runs if "<" not in run.variant))
    runs = [run for run in full_sweep.runs if run.variant in names]
    asked = {name: settings.get(name, {}) for name in names}
    own = tmp_path / "plain" / "seed-0" / "tensorboard" / "plain"
    with SummaryWriter(str(own)) as writer:  # as training leaves it
        writer.add_scalar("train/loss", 1.0, 1)
    for _ in range(2):  # a second report replaces the first
        write_hparams(tmp_path, runs, asked, dict.fromkeys(names, "keeps"))
    events = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    events.Reload()
    backend = Context(TBContext(data_provider=MultiplexerDataProvider(events, str(tmp_path)), logdir=str(tmp_path)))
    request = context.RequestContext()
    metadata = backend.hparams_metadata(request, "")
    experiment = backend.experiment_from_metadata(
        request, "", True, metadata, backend.hparams_from_data_provider(request, "", 0)
    )
    wanted = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=100)
    for info in experiment.hparam_infos:
        wanted.col_params.add(hparam=info.name)
    for info in experiment.metric_infos:
        wanted.col_params.add(metric=info.name)
    for status in ("STATUS_SUCCESS", "STATUS_RUNNING", "STATUS_UNKNOWN", "STATUS_FAILURE"):
        wanted.allowed_statuses.append(api_pb2.Status.Value(status))
    groups = Handler(request, backend, "", wanted).run().session_groups
    return experiment, {group.name: group for group in groups}, runs


def test_the_page_has_the_columns_of_every_overlay_and_a_row_for_each_variant(page):
    experiment, groups, runs = page
    names = [info.name for info in sorted(experiment.hparam_infos, key=lambda info: (not info.differs, info.name))]
    assert names[0] == "verdict"  # TensorBoard's order: the page shows the first few
    assert set(names) == {"variant", "verdict", "explorer.pass_at_k.k", "learning_rate", "bf16"}
    assert {info.name.tag for info in experiment.metric_infos} == {f"variants/{key}" for key in METRICS}
    assert set(groups) == {run.variant for run in runs}
    assert all(len(group.sessions) == 3 for group in groups.values())


def test_a_row_has_the_settings_and_verdict_of_its_variant_and_the_mean_of_its_last_metrics(page):
    _, groups, runs = page
    row = groups["pass_at_k"]
    assert row.hparams["variant"].string_value == "pass_at_k"
    assert row.hparams["verdict"].string_value == "keeps"
    assert row.hparams["explorer.pass_at_k.k"].number_value == 4
    assert groups["low_lr"].hparams["learning_rate"].number_value == 1e-5
    of = [run.last["nscr"] for run in runs if run.variant == "pass_at_k"]
    shown = {value.name.tag: value for value in row.metric_values}
    assert shown["variants/nscr"].value == pytest.approx(sum(of) / len(of), rel=1e-6)
    assert shown["variants/nscr"].training_step == 100


def test_a_run_that_has_event_files_of_its_own_is_listed_once(page, tmp_path):
    _, _, runs = page
    folders = {file.parent.relative_to(tmp_path) for file in tmp_path.rglob("events.out.tfevents.*")}
    assert Path("plain/seed-0/tensorboard/plain") in folders
    assert len(folders) == len(runs) + 1  # and the sweep's own
