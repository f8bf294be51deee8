"""The monitor's plan until so many successes on a real colocated vLLM: one stream, from which draws are taken back."""

import json
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.pool.pool import Pool

COUNTED = """
import json, os
from pathlib import Path
from offleash.callbacks.policy import trl_engine
generate, told = trl_engine.vllm_seam.generate_wanted, Path(os.environ["STREAMS"])
def counted(llm, prompts, params, unwanted):
    outputs = generate(llm, prompts, params, unwanted)
    with (told / os.environ.get("RANK", "0")).open("a") as file:
        print(json.dumps([len(prompts), sum(output is not None for output in outputs)]), file=file)
    assert not llm.llm_engine.has_unfinished_requests()
    return outputs
trl_engine.vllm_seam.generate_wanted = counted

from offleash.eval.tasks.countdown import Countdown
verify = Countdown.verify
def noted(self, problems, completions, truncated=None):
    with (told / f"judged-{os.environ.get('RANK', '0')}").open("a") as file:
        print(len(completions), file=file)
    return verify(self, problems, completions, truncated)
Countdown.verify = noted
"""
DOWN = """
from dataclasses import replace
from offleash.eval.tasks.countdown import Countdown
working = Countdown.verify
def down(self, problems, completions, truncated=None):
    verdicts = working(self, problems, completions, truncated)
    return [replace(verdict, correct=False, status="error", message="the judge is down") for verdict in verdicts]
from offleash.callbacks.policy.pool import PolicyPool
judge = PolicyPool._judge_streamed
def judged(self, *args):
    if os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
        Countdown.verify = down
    return judge(self, *args)
PolicyPool._judge_streamed = judged
"""
K, SUCCESSES = 128, 3


@pytest.mark.slow
@pytest.mark.parametrize("processes", [None, "cpu_two_processes"])
def test_problems_are_drawn_until_they_are_done_and_the_rest_is_taken_back(
    processes: str | None, tmp_path: Path, launch_patched: Any, colocated: dict[str, Any], monkeypatch: Any
) -> None:
    monkeypatch.setenv("STREAMS", str(tmp_path / "streams"))
    (tmp_path / "streams").mkdir()
    plan = {"monitor_k": K, "monitor_successes": SUCCESSES, "monitor_score_k": 4, "monitor_every": 1}
    done = launch_patched(tmp_path / "run", COUNTED, processes, max_steps=1, **plan, **colocated)
    assert done.returncode == 0, done.stderr[-4000:]
    for step in (0, 1):
        pool = Pool.open(tmp_path / "run" / "pools" / f"step-{step:06d}")
        hits = pool.hits()
        is_done = hits.correct_p == SUCCESSES
        assert is_done.any()
        assert (hits.n_p[~is_done] == K).all()
        assert (hits.correct_p <= SUCCESSES).all()
        columns = ["problem_id", "index", "correct", "logprob", "entropy", "base_logprob"]
        rows = sorted(pool.read(columns).to_pylist(), key=lambda row: row["index"])
        last = {row["problem_id"]: row["correct"] for row in rows}
        assert all(last[name] for name, finished in zip(hits.problem_ids, is_done, strict=True) if finished)
        for row in rows:
            scores = (row["logprob"], row["entropy"], row["base_logprob"])
            assert [score is not None for score in scores] == [row["index"] < SUCCESSES] * 3
            assert row["index"] >= SUCCESSES or (row["logprob"] < 0 and row["entropy"] > 0)
    steps = json.loads((tmp_path / "run" / "support.json").read_text())["steps"]
    assert 0.1 < steps["0"]["pass_at_k/1"] < 0.7
    ranks = range(2 if processes else 1)
    drawn_in_all = 0
    for rank in ranks:
        lines = (tmp_path / "streams" / str(rank)).read_text().splitlines()
        asked, drawn = zip(*map(json.loads, lines), strict=True)
        assert sum(drawn) < 0.9 * sum(asked)
        assert len(asked) == 3  # the base's rest, its rates then being known, and each step's whole
        drawn_in_all += sum(drawn)
    judged = sum(sum(map(int, (tmp_path / "streams" / f"judged-{rank}").read_text().split())) for rank in ranks)
    # Nothing twice: the streams, the base's first round, and each process's rollouts of one step.
    assert judged == drawn_in_all + 4 * len(hits.problem_ids) + 16 * len(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [None, "cpu_two_processes"])
def test_a_verifier_that_is_down_ends_its_stream_and_then_the_run_on_every_process(
    processes: str | None, tmp_path: Path, launch_patched: Any, colocated: dict[str, Any], monkeypatch: Any
) -> None:
    monkeypatch.setenv("STREAMS", str(tmp_path / "streams"))
    (tmp_path / "streams").mkdir()
    plan = {"monitor_k": 1024, "monitor_successes": SUCCESSES, "monitor_score_k": 1, "monitor_every": 1}
    done = launch_patched(tmp_path / "run", COUNTED + DOWN, processes, max_steps=1, **plan, **colocated)
    assert done.returncode != 0
    assert "the verifier failed on" in done.stderr
    assert "the judge is down" in done.stderr
    assert "the other processes wait" not in done.stderr  # each was told
    asked, drawn = json.loads((tmp_path / "streams" / ("1" if processes else "0")).read_text())
    assert drawn < asked / 2  # the stream did not come to its end
