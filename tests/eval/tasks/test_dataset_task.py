"""A dataset and a reward function as a task: ids, prompts, thresholds, answers, and what its version depends on."""

import math

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from PIL import Image

from offleash.callbacks.metrics import sample_metrics
from offleash.eval import for_trl, load_task, sample_pool, task_from_dataset
from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.images import has_images
from offleash.eval.pool.spellings import match_spellings
from offleash.eval.tasks.dataset_task import find_answer
from offleash.eval.verify.dry_call import check_task

ROWS = [{"prompt": f"{n}+{n}=", "gold": str(2 * n), "right": [str(2 * n), f"{n + n}.0"]} for n in range(1, 5)]


def equals(completions, gold, **columns):
    return [float(text == one) for text, one in zip(completions, gold, strict=True)]


def near(completions, gold, **columns):
    return [1 / (1 + abs(float(text) - float(one))) for text, one in zip(completions, gold, strict=True)]


def test_rows_and_a_dataset_are_one_task_with_ids_that_stay():
    task, other = task_from_dataset(ROWS, equals), task_from_dataset(Dataset.from_list(ROWS), equals)
    assert [p.id for p in task.problems] == [p.id for p in other.problems]
    assert task.version == other.version
    fewer = task_from_dataset(ROWS[2:], equals)
    assert [p.id for p in fewer.problems] == [p.id for p in task.problems[2:]]
    named = task_from_dataset([{"id": n, **row} for n, row in enumerate(ROWS)], equals, gold="gold")
    assert [(p.id, p.gold) for p in named.problems[:2]] == [("0", "2"), ("1", "4")]


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([], "empty"),
        ([{"question": "2+2="}], "row 0 has no column 'prompt'.*question"),
        ([*ROWS, ROWS[1]], "rows 1 and 4 have the same prompt"),
        ([{"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}], "rows 0 and 1 have the same id '1'"),
        (DatasetDict(test=Dataset.from_list(ROWS)), "several datasets .*test"),
        (IterableDataset.from_generator(lambda: iter(ROWS)), "no fixed rows.*take"),
        ("org/dataset", "'org/dataset' is a name"),
        ([{"prompt": 3}], "row 0: prompt must be text or chat messages, got 3"),
        ([{"prompt": "a", "object": object()}], "a column holds a object"),
    ],
)
def test_what_cannot_be_a_set_of_problems_is_refused_with_its_row(dataset, words):
    with pytest.raises(ConfigError, match=words):
        task_from_dataset(dataset, equals)


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": "1"},
        {"threshold": math.nan},
        {"answer": True},
        {"name": "a/b"},
        {"gold": "answer"},
        {"ids": "key"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError):
        task_from_dataset(ROWS, equals, **settings)


def test_a_reward_is_correct_from_the_threshold_on_and_only_0_and_1_need_none():
    task = task_from_dataset(ROWS, near, threshold=0.5)
    assert [v.correct for v in task.verify([task.problems[0]] * 3, ["2", "3", "4"])] == [True, True, False]
    with pytest.raises(ConfigError, match=r"near returned a reward of 0\.333"):
        task_from_dataset(ROWS, near).verify(task.problems[:1], ["4"])
    minus = task_from_dataset(ROWS, lambda completions, **columns: [-1.0 for _ in completions])
    with pytest.raises(ConfigError, match="threshold"):
        check_task(minus)


def test_answers_are_looked_for_and_equal_values_are_one_class():
    task = task_from_dataset(ROWS, lambda completions, **columns: [1.0 for _ in completions])
    texts = ["so \\boxed{1,000}", "<answer>1000.0</answer>", "The answer is 1000.", "I get 1000", "Paris", ""]
    found = task.verify([task.problems[0]] * len(texts), texts)
    assert [v.answer for v in found] == ["1000", "1000", "1000", "1000", "paris", None]
    wrong = task_from_dataset(ROWS, lambda completions, **columns: [0.0 for _ in completions])
    statuses = [v.status for v in wrong.verify([task.problems[0]] * 2, ["", ""], [False, True])]
    assert statuses == ["no_answer", "truncated"]


def test_a_function_names_answers_and_must_name_them_in_text():
    task = task_from_dataset(ROWS, equals, answer=lambda text: text[:1] or None)
    (one, other) = task.verify([task.problems[0]] * 2, ["2", ""])
    assert (one.answer, one.spelling, other.answer, other.status) == ("2", "2", None, "no_answer")

    def as_number(text):
        return 2

    def failing(text):
        return {}[text]

    (verdict,) = task_from_dataset(ROWS, equals, answer=failing).verify(task.problems[:1], ["2"])
    assert verdict.failed
    assert "failing raised KeyError" in verdict.message
    with pytest.raises(VerifyError, match="as_number returned 2"):
        task_from_dataset(ROWS, equals, answer=as_number).verify(task.problems[:1], ["2"])


def test_listed_answers_are_units():
    task = task_from_dataset(ROWS, equals, answer=str, answers="right")
    assert task.correct_answers(task.problems[0]) == ("2", "2.0")
    same = task_from_dataset(ROWS, equals, answer=str, answers=lambda row: row["right"])
    assert same.correct_answers(task.problems[0]) == ("2", "2.0")
    with pytest.raises(ConfigError, match="must be a list of texts"):
        task_from_dataset(ROWS, equals, answers="gold")


def test_the_version_changes_with_everything_that_a_verdict_depends_on():
    mended = [{**ROWS[0], "gold": "3"}, *ROWS[1:]]
    versions = {
        task_from_dataset(ROWS, equals).version,
        task_from_dataset(ROWS, near).version,
        task_from_dataset(ROWS, equals, threshold=0.5).version,
        task_from_dataset(ROWS, equals, answer=False).version,
        task_from_dataset(ROWS, equals, answer=str).version,
        task_from_dataset(mended, equals).version,
        task_from_dataset(ROWS, equals, version="1").version,
        task_from_dataset(ROWS, equals, version="2").version,
    }
    assert len(versions) == 8
    assert task_from_dataset(ROWS, near, version="1").version == task_from_dataset(ROWS, equals, version="1").version


def test_pictures_of_a_dataset_are_in_the_prompt_and_in_what_the_reward_gets():
    red, blue = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    asked = [{"role": "user", "content": "Which colour?"}]
    holed = [{"role": "user", "content": [{"type": "text", "text": "Which?"}, {"type": "image"}]}]
    rows = [{"prompt": asked, "images": [red]}, {"prompt": asked, "images": [blue]}, {"prompt": holed, "images": [red]}]
    seen = []

    def reward(prompts, completions, images, **columns):
        seen.extend(prompts)
        return [float(pictures[0].getpixel((0, 0)) == (255, 0, 0)) for pictures in images]

    task = task_from_dataset(rows, reward)
    assert all(map(has_images, task.problems))
    assert [v.correct for v in task.verify(task.problems, ["red"] * 3)] == [True, False, True]
    kinds = [[part["type"] for part in prompt[0]["content"]] for prompt in seen]
    assert kinds == [["image", "text"], ["image", "text"], ["text", "image"]]
    assert seen[1][0]["content"][0]["image"].getpixel((0, 0)) == (0, 0, 255)
    with pytest.raises(ConfigError, match="2 pictures for 1 image parts"):
        task_from_dataset([{"prompt": holed, "images": [red, blue]}], reward)
    with pytest.raises(ConfigError, match="plain text"):
        task_from_dataset([{"prompt": "Which?", "image": red}], reward)


def test_sampled_without_answers_what_is_made_of_them_is_unknown_also_where_all_was_cut_off(tmp_path):
    rows = [{"prompt": "1,2,3,4=10:", "first": 0}, {"prompt": "1,2,3,5=11:", "first": 1}]

    def correct(completions, first, **columns):
        return [float(one == 0) for one in first]

    task = task_from_dataset(rows, correct, answer=False)
    pool = sample_pool("lab", task, tmp_path / "pool", k=4, sampling={"max_new_tokens": 1}, progress=False)
    assert set(pool.read(["status"]).column("status").to_pylist()) == {"ok", "truncated"}
    found = sample_metrics(pool.tally(), 1.0)
    assert math.isnan(found["entropy/answer"])
    assert found["verify/truncated"] == 0.5
    assert pool.hits().unit_hits.tolist() == [4, 0]


def test_answers_that_nobody_listed_are_counted_beside_the_problems(tmp_path):
    task = task_from_dataset([{"prompt": "1,2,3,4=10:"}], lambda completions, **c: [1.0] * len(completions), answer=str)
    pool = sample_pool("lab", task, tmp_path / "pool", k=8, sampling={"max_new_tokens": 12}, progress=False)
    assert pool.hits().unit_hits.tolist() == [8]
    spelled = match_spellings(pool.spelled(), pool.spelled())[0].hits
    assert spelled.unit_hits.sum() == 8
    assert len(spelled.unit_hits) == len(set(pool.read(["completion"]).column("completion").to_pylist())) > 1


def test_a_task_gives_a_trainer_its_dataset_and_reward():
    task = task_from_dataset(ROWS, equals)
    spec = for_trl(task)
    assert spec.train_dataset.to_list() == ROWS
    assert spec.reward_funcs == [equals]
    countdown = load_task("countdown", split="probe", n=3)
    made = for_trl(countdown)
    golds, ids = [p.gold for p in countdown.problems], [p.id for p in countdown.problems]
    assert made.train_dataset["problem_id"] == ids
    assert made.reward_funcs[0](completions=golds, problem_id=ids) == [1.0] * 3
    assert np.mean(made.reward_funcs[0](completions=["1"] * 3, problem_id=ids)) == 0


def test_one_answer_is_one_class_wherever_the_cascade_finds_it():
    written = (r"so \boxed{1/2}", "The answer is 0.5.", "<answer>1/2</answer>")
    assert len({find_answer(text)[0] for text in written}) == 1
    assert find_answer("7 apples, no: 8")[0] == find_answer("8")[0]
