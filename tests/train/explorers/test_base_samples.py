"""The base pool on training problems: drawn once, found again, never from the policy, never of probe problems."""

import shutil

import pytest

from offleash.callbacks import SupportCallback
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.eval.tasks import load_task
from offleash.train.explorers.samples.anchor import Anchor
from offleash.train.explorers.samples.base_samples import unit_weights
from offleash.train.explorers.samples.rehearsal import Rehearsal
from offleash.train.explorers.samples.seeding import Seeding

pytestmark = pytest.mark.long

SMALL = {"problems": 16, "k": 4}


def the_pool(tmp_path) -> Pool:
    (path,) = (tmp_path / "base-pools").iterdir()
    return Pool.open(path)


def texts(pool: Pool) -> list[str]:
    return pool.read(["completion"]).column("completion").to_pylist()


def parts(pool: Pool) -> dict:
    return {path: path.stat().st_mtime_ns for path in pool.path.glob("samples-*")}


def test_another_seed_and_another_variant_draw_nothing(make_trainer, tmp_path, capsys) -> None:
    make_trainer("first", [Anchor(**SMALL)], max_steps=1).train()
    pool = the_pool(tmp_path)
    assert pool.is_complete
    assert [p.id for p in pool.problems] == [p.id for p in load_task("countdown", split="train", n=64).problems[:16]]
    before = parts(pool)
    for name, explorer in (("seed", Rehearsal(**SMALL)), ("variant", Seeding(**SMALL))):
        make_trainer(name, [explorer], max_steps=1, seed=9).train()
        assert "complete, reused" in capsys.readouterr().out
    assert parts(the_pool(tmp_path)) == before


def test_fresh_samples_are_those_of_the_seed(make_trainer, tmp_path) -> None:
    for name, seed in (("one", 8), ("two", 9), ("again", 8)):
        make_trainer(name, [Rehearsal(**SMALL, fresh=True)], max_steps=1, seed=seed).train()
    pools = [Pool.open(path) for path in (tmp_path / "base-pools").iterdir()]
    assert len(pools) == 2
    assert texts(pools[0]) != texts(pools[1])


def test_drawing_leaves_the_training_alone(make_trainer, trajectory, tmp_path) -> None:
    rows = []
    for name in ("drawing", "finding"):
        trainer = make_trainer(name, [Anchor(**SMALL)], max_steps=3)
        trainer.train()
        rows.append(trajectory(trainer))
    assert rows[0] == rows[1]
    assert len({row["loss"] for row in rows[0]}) == 3


def test_a_run_that_resumes_draws_what_is_missing_from_the_base(make_trainer, trajectory, tmp_path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 5e-3}
    whole = make_trainer("run", [Anchor(**SMALL)], max_steps=4, **settings)
    whole.train()
    pool = the_pool(tmp_path)
    drawn, files = texts(pool), sorted(pool.path.glob("samples-*"))
    assert len(files) == 2
    files[0].unlink()
    resumed = make_trainer("run", [Anchor(**SMALL)], max_steps=4, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert texts(the_pool(tmp_path)) == drawn
    assert trajectory(resumed) == trajectory(whole)
    shutil.rmtree(pool.path)
    again = make_trainer("run", [Anchor(**SMALL)], max_steps=4, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert texts(the_pool(tmp_path)) == drawn


def test_the_pool_lies_where_the_monitor_keeps_its_own(make_trainer, tmp_path) -> None:
    trainer = make_trainer("run", [Anchor(**SMALL)], max_steps=1)
    probe = load_task("countdown", split="probe", n=4)
    trainer.add_callback(SupportCallback(trainer, probe, k=4, every=9, base_pools=tmp_path / "elsewhere"))
    trainer.train()
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2
    assert not (tmp_path / "base-pools").exists()


def test_base_samples_of_probe_problems_are_refused(make_trainer) -> None:
    trainer = make_trainer("run", [Anchor(**SMALL)], max_steps=1)
    probe = load_task("countdown", split="probe", n=4)
    trainer.add_callback(SupportCallback(trainer, probe, k=4, every=9))
    trainer.verifier.task = probe
    with pytest.raises(ConfigError, match="4 of 4 probe problems"):
        trainer.train()


def test_unit_weights_are_shared_by_equal_answers() -> None:
    assert unit_weights(["a", "b", "a", "a"]) == pytest.approx([1 / 6, 1 / 2, 1 / 6, 1 / 6])
