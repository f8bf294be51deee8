"""Probe problems are found among training prompts in another dress, and other problems are not."""

import pytest
from datasets import Dataset

from offleash.callbacks.contamination import check_contamination, check_dataset_contamination, check_row_contamination
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task


class Probe:
    name, version = "probe", "1"

    def __init__(self, *prompts) -> None:
        self.problems = [Problem(f"p{i}", prompt, "") for i, prompt in enumerate(prompts)]


def user(content) -> list[dict]:
    return [{"role": "user", "content": content}]


QUESTION = "What is 2 + 2?\n\nBox it."


@pytest.mark.parametrize(
    "prompt",
    [
        QUESTION,
        "What is 2 + 2?  Box it. ",
        user("What is 2 + 2?\nBox it."),
        [{"role": "system", "content": "Think."}, *user(QUESTION)],
        [*user("What is 1 + 1?"), {"role": "assistant", "content": "2"}, *user(QUESTION)],
        user([{"type": "text", "text": QUESTION}]),
    ],
)
@pytest.mark.parametrize("probe", [QUESTION, user(QUESTION)])
def test_a_problem_is_found_under_another_system_message_and_spacing(prompt, probe) -> None:
    with pytest.raises(ConfigError, match=r"1 of 2 .*\(p0\)"):
        check_dataset_contamination(Dataset.from_list([{"prompt": prompt}]), Probe(probe, user("another")))


def test_only_the_question_itself_is_compared() -> None:
    with pytest.raises(ConfigError):
        check_contamination([QUESTION], Probe(QUESTION))
    check_contamination([user("What is 2 + 3?"), "What is 2+2? Box it."], Probe(QUESTION))
    check_contamination([[{"role": "system", "content": QUESTION}, *user("What is 2 + 3?")]], Probe(user(QUESTION)))


def test_a_last_message_that_several_problems_share_names_none_of_them() -> None:
    def told(story: str) -> list[dict]:
        return [*user(story), {"role": "assistant", "content": "I see."}, *user("Continue.")]

    probe = Probe(told("one"), told("two"))
    check_contamination([told("three")], probe)
    with pytest.raises(ConfigError, match="1 of 2"):
        check_contamination([told("two")], probe)


def test_the_same_question_about_another_picture_is_another_problem() -> None:
    def shown(url: str) -> list[dict]:
        return user([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "How many?"}])

    dataset = Dataset.from_list([{"prompt": shown("data:a")}])
    check_dataset_contamination(dataset, Probe(shown("data:b")))
    with pytest.raises(ConfigError, match="1 of 1"):
        check_dataset_contamination(dataset, Probe(shown("data:a")))


def test_files_that_number_their_rows_alike_pass(tmp_path) -> None:
    for name, question in (("train", "Compute 1 + 1."), ("probe", "Compute 3 + 4.")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": 0, "problem": "{question}", "answer": "2"}}\n')
    train, probe = (load_task("aime2024", path=str(tmp_path / f"{name}.jsonl")) for name in ("train", "probe"))
    assert train.problems[0].id == probe.problems[0].id
    check_contamination([problem.prompt for problem in train.problems], probe)


def test_rows_of_an_environment_may_share_a_prompt_but_not_everything():
    task = Probe(user("Play."), user("Play."))
    train = Dataset.from_list([{"prompt": user("Play."), "seed": seed, "id": f"t{seed}"} for seed in range(4)])
    rows = [{"prompt": problem.prompt, "seed": 7 + i, "id": problem.id} for i, problem in enumerate(task.problems)]
    check_row_contamination(train, rows, task)
    with pytest.raises(ConfigError, match=r"1 of 2.*p1"):
        check_row_contamination(train, [rows[0], {**rows[1], "seed": 3}], task)
