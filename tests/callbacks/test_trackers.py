"""W&B and trackio are not installed here, so stand-ins take what would be logged; TensorBoard is real elsewhere."""

import math
from types import SimpleNamespace

from transformers.integrations import TrackioCallback, WandbCallback

from offleash.callbacks.trackers import Trackers


class Recorder:
    run = "open"

    def __init__(self):
        self.logged = []

    def log(self, values):
        self.logged.append(values)


def trainer_with(kind, attribute):
    callback, recorder = object.__new__(kind), Recorder()
    setattr(callback, attribute, recorder)
    return SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[callback])), recorder


def test_the_same_names_reach_wandb_and_trackio_with_the_step_and_without_undefined_numbers():
    for kind, attribute in ((WandbCallback, "_wandb"), (TrackioCallback, "_trackio")):
        trainer, recorder = trainer_with(kind, attribute)
        Trackers(trainer).scalars({"support/unit/srr": 0.9, "support/unit/sds": math.nan}, step=7)
        assert recorder.logged == [{"support/unit/srr": 0.9, "train/global_step": 7}]


def test_without_trackers_nothing_happens():
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[]))
    trackers = Trackers(trainer)
    trackers.scalars({"a/b": 1.0}, step=0)
    assert trackers.tensorboard is None
