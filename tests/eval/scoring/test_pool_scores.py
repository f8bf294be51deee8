"""Scores of a pool: the brute-force numbers, whole after a kill, refused when made otherwise, shown by compare."""

import math
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from offleash.eval.comparison.compare import compare
from offleash.eval.engines.model import resolve_model
from offleash.eval.engines.prompts import prepare_prompts
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem
from offleash.eval.report.text import text_report
from offleash.eval.scoring import pool_scores, teacher_forcing
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreRows, ScoreSpec, find_scores
from offleash.eval.scoring.summary import summarize
from offleash.eval.scoring.tokens import find_encoder, was_truncated
from offleash.train.cli import main

PROBLEMS, K = 4, 6


def perturb(source: Path, to: Path, seed: int = 0) -> Path:
    """The lab model with other weights, beside its own tokenizer."""
    shutil.copytree(source, to, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="float32")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(to)
    return to


def sample(folder: Path, model: str, *words: str) -> Path:
    arguments = ["--task", "countdown", "--task-args", f'{{"split": "probe", "n": {PROBLEMS}}}', "--k", str(K)]
    assert main(["sample", "--model", model, *arguments, "--max-new-tokens", "16", "--pool", str(folder), *words]) == 0
    return folder


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory, lab_base: Path) -> Path:
    return perturb(lab_base, tmp_path_factory.mktemp("models") / "policy")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Path:
    """Two fresh pools, unscored."""
    root = tmp_path_factory.mktemp("drawn")
    sample(root / "base", "lab")
    sample(root / "policy", str(policy))
    return root


@pytest.fixture
def pools(drawn: Path, tmp_path: Path) -> Path:
    shutil.copytree(drawn, tmp_path / "pools")
    return tmp_path / "pools"


def scored(pool: Path, name: str) -> ScoreRows:
    return ScoreFolder.open(Pool.open(pool), name).read()


def by_draw(pool: Path, name: str) -> dict[tuple[int, int], tuple[float, ...]]:
    rows = scored(pool, name)
    return {(int(p), int(i)): tuple(values) for p, i, *values in zip(*rows, strict=True)}


def brute_force(
    model: Any, tokenizer: Any, prompt: str, text: str, ended: bool, temperature: float
) -> tuple[float, float, int]:
    """One plain forward pass over the whole sequence."""
    start = tokenizer(prompt)["input_ids"]
    ids = tokenizer(text)["input_ids"] + ([tokenizer.eos_token_id] if ended else [])
    with torch.no_grad():
        logits = model(torch.tensor([start + ids])).logits[0, len(start) - 1 : -1].double() / temperature
    logp = logits.log_softmax(-1)
    chosen = logp[torch.arange(len(ids)), torch.tensor(ids)]
    return float(chosen.sum()), float(-(logp.exp() * logp).sum(-1).mean()), len(ids)


# The numbers.


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_equal_a_plain_forward_pass(pools: Path, lab_model: tuple[Any, Any], temperature: float) -> None:
    assert main(["score", str(pools / "policy"), "--model", "lab", "--temperature", str(temperature)]) == 0
    pool = Pool.open(pools / "policy")
    rows, prompts = by_draw(pools / "policy", "lab"), [problem.prompt for problem in pool.problems]
    samples = pool.read(["problem_id", "index", "status", "tokens", "completion"]).to_pylist()
    assert len(rows) == len(samples) == PROBLEMS * K
    for row in samples:
        problem = pool.problem_ids.index(row["problem_id"])
        ended = row["status"] != "truncated"
        logprob, entropy, tokens = brute_force(*lab_model, str(prompts[problem]), row["completion"], ended, temperature)
        got_tokens, drawn_tokens, got_logprob, got_entropy = rows[problem, row["index"]]
        assert got_logprob == pytest.approx(logprob, abs=1e-4)
        assert got_entropy == pytest.approx(entropy, abs=1e-5)
        assert (got_tokens, drawn_tokens) == (tokens, row["tokens"])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_under_a_uniform_model_perplexity_is_the_vocabulary_and_entropy_its_logarithm(
    pools: Path, tmp_path: Path, lab_base: Path, temperature: float
) -> None:
    shutil.copytree(lab_base, tmp_path / "uniform")
    model = AutoModelForCausalLM.from_pretrained(lab_base, dtype="float32")
    torch.nn.init.zeros_(model.get_output_embeddings().weight)
    model.save_pretrained(tmp_path / "uniform")
    words = ["--model", str(tmp_path / "uniform"), "--temperature", str(temperature), "--name", "uniform"]
    assert main(["score", str(pools / "base"), *words]) == 0
    rows = scored(pools / "base", "uniform")
    vocabulary = model.config.vocab_size
    np.testing.assert_allclose(np.exp(rows.nll_r), vocabulary, rtol=1e-5)
    np.testing.assert_allclose(rows.entropy_r, math.log(vocabulary), rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_under_the_model_that_drew_them_scores_equal_what_the_engine_recorded(
    tmp_path: Path, temperature: float
) -> None:
    folder = sample(tmp_path / "pool", "lab", "--temperature", str(temperature))
    assert main(["score", str(folder), "--model", "lab", "--temperature", str(temperature)]) == 0
    rows = scored(folder, "lab")
    assert not rows.retokenized_r.any()
    logprob = np.array(Pool.open(folder).read(["logprob"]).column("logprob").to_pylist())
    order = np.lexsort((rows.index_r, rows.problem_r))
    np.testing.assert_allclose(rows.logprob_r[order], logprob, atol=1e-4)


def test_summary_equals_a_plain_loop_and_one_problem_has_no_interval() -> None:
    rng = np.random.default_rng(0)
    problem, nll, entropy = np.repeat([7, 3, 5], [2, 3, 4]), rng.random(9), rng.random(9)
    nll[8] = math.nan
    tokens = np.arange(1.0, 10.0)
    found = summarize(problem, nll, entropy, tokens)
    places = [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert found.sequences == 8
    assert found.perplexity.value == pytest.approx(math.exp(np.mean([np.mean(nll[p]) for p in places])))
    assert found.mean_perplexity.value == pytest.approx(np.mean([np.mean(np.exp(nll[p])) for p in places]))
    assert found.median_perplexity == pytest.approx(np.median(np.exp(nll[:8])))
    assert found.token_entropy.value == pytest.approx(np.mean([np.mean(entropy[p]) for p in places]))
    assert found.tokens.value == pytest.approx(np.mean([1.5, 4, 7]))
    assert found.perplexity.low < found.perplexity.value < found.perplexity.high
    assert found.perplexity.n == 3
    assert math.isnan(summarize(np.zeros(9, int), nll, entropy, tokens).perplexity.low)
    assert math.isnan(summarize(np.zeros(0, int), *[np.zeros(0)] * 3).perplexity.value)


# Which tokens.


def pool_of(path: Path, completions: list[tuple[str | None, str, int | None]], **changes: Any) -> Pool:
    """One lab problem with these (text, status, drawn tokens)."""
    source = resolve_model("lab")
    problems = [Problem("a", "3 4 5:12=", "x")]
    settings = {"template": prepare_prompts(problems, source.tokenizer).template, "weights": source.weights, **changes}
    pool = make_pool(path, None, len(completions), problems, model="lab", max_new_tokens=5, **settings)
    pool.append(
        [
            Sample("a", i, None, False, status, tokens=tokens, completion=text)  # type: ignore[arg-type]
            for i, (text, status, tokens) in enumerate(completions)
        ]
    )
    return pool


def test_the_end_token_is_scored_exactly_where_the_completion_ended(tmp_path: Path) -> None:
    pool_of(
        tmp_path / "pool",
        [
            ("3+4", "ok", 4),  # ended
            ("3+4+5", "truncated", 5),
            ("3+4+5", "ok", 5),  # an answer was found in a cut completion
            ("3+4+", "ok", 5),  # ended with its last token
            ("3+4", "ok", None),  # unknown: taken as ended
            ("", "no_answer", 1),
        ],
    )
    assert main(["score", str(tmp_path / "pool"), "--model", "lab"]) == 0
    assert [by_draw(tmp_path / "pool", "lab")[0, i][0] for i in range(6)] == [4, 5, 5, 5, 4, 1]
    assert not scored(tmp_path / "pool", "lab").retokenized_r.any()


def test_with_stop_texts_no_end_token_is_made_up(tmp_path: Path) -> None:
    source = resolve_model("lab")
    spec = pool_of(tmp_path / "pool", [("3", "ok", 2)], stop=("x",)).spec
    assert find_encoder(source, None, spec).end_token == ""
    assert find_encoder(source, None, replace(spec, stop=("<pad>",))).end_token == "<eos>"  # a further end token
    assert find_encoder(source, "<pad>", spec).end_ids == [0]
    with pytest.raises(ConfigError, match="33"):
        find_encoder(source, "33")


def test_what_cannot_be_scored_and_what_is_spelled_otherwise_is_counted_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool_of(
        tmp_path / "pool",
        [(None, "ok", 3), ("", "truncated", 0), ("3+" * 70, "ok", 141), ("3+4", "ok", 9), ("3+4", "ok", 4)],
    )
    assert main(["score", str(tmp_path / "pool"), "--model", "lab"]) == 0
    out, err = capsys.readouterr()
    assert "2 completions of 1 problems" in out
    for said in (
        "1 of 5 completions have no text stored",
        "1 of 5 completions are empty",
        "1 of 5 completions do not fit",
    ):
        assert said in err
    assert "1 of 2 completions were sampled with a different number of tokens" in err
    assert main(["score", str(tmp_path / "pool"), "--model", "lab"]) == 0
    assert "nothing to score" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "drawn", "spelled", "cut"),
    [("truncated", 5, 2, True), ("ok", 5, 5, True), ("ok", 5, 4, False), ("ok", 4, 4, False), ("ok", None, 9, False)],
)
def test_a_cut_is_told_by_the_verdict_or_the_length(
    tmp_path: Path, status: str, drawn: int | None, spelled: int, cut: bool
) -> None:
    assert was_truncated(pool_of(tmp_path / "pool", [("3", "ok", 2)]).spec, status, drawn, spelled) is cut


# On disk.


def test_more_draws_are_added_and_nothing_is_scored_twice(pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    real = teacher_forcing.score

    def counting(model: Any, prompts: Any, completions: Any, **settings: Any) -> Any:
        counted.append(len(completions))
        return real(model, prompts, completions, **settings)

    monkeypatch.setattr(teacher_forcing, "score", counting)
    line = ["score", str(pools / "base"), "--model", "lab"]
    assert main([*line, "--k", "2", "--limit", "3"]) == 0
    assert main([*line, "--k", "4"]) == 0
    assert main(line) == 0
    assert counted == [6, 10, 8]
    rows = scored(pools / "base", "lab")
    assert len({*zip(rows.problem_r, rows.index_r, strict=True)}) == len(rows.index_r) == PROBLEMS * K


def test_from_python_a_pool_is_scored_as_the_command_does_and_resumed(pools: Path) -> None:
    assert main(["score", str(pools / "base"), "--model", "lab", "--name", "command"]) == 0
    first = pool_scores.score_pool(pools / "base", "lab", k=2, name="python", progress=False)
    assert (first.new, len(first.rows.index_r), first.path) == (
        2 * PROBLEMS,
        2 * PROBLEMS,
        pools / "base/scores/python",
    )
    full = pool_scores.score_pool(Pool.open(pools / "base"), "lab", name="python", temperature=1, progress=False)
    assert (full.new, full.summary.sequences, full.summary.perplexity.n) == (4 * PROBLEMS, K * PROBLEMS, PROBLEMS)
    assert full.notes == ()
    command, python = by_draw(pools / "base", "command"), by_draw(pools / "base", "python")
    assert command.keys() == python.keys()
    for draw, values in command.items():
        assert python[draw] == pytest.approx(values, rel=1e-5)
    with pytest.raises(ConfigError, match="k must"):
        pool_scores.score_pool(pools / "base", "lab", k=0)


class Killed(BaseException):
    pass


def test_killed_and_continued_equals_undisturbed_to_the_last_bit(pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_scores, "GROUP_ROWS", 5)
    line = ["--model", "lab", "--save-every", "0"]
    assert main(["score", str(pools / "base"), *line, "--name", "whole"]) == 0
    real, calls = ScoreFolder.append, 0

    def dies(self: ScoreFolder, columns: Any) -> None:
        """The machine goes down in the middle of the third part: a temporary file is left, no part."""
        nonlocal calls
        calls += 1
        if calls >= 3:
            (self.path / f".{'a' * 32}.1.gone.tmp").write_bytes(b"half")
            raise Killed
        real(self, columns)

    with monkeypatch.context() as patch:
        patch.setattr(ScoreFolder, "append", dies)
        with pytest.raises(Killed):
            main(["score", str(pools / "base"), *line, "--name", "incomplete"])
    assert len(scored(pools / "base", "incomplete").index_r) == 10
    assert main(["score", str(pools / "base"), *line, "--name", "incomplete"]) == 0
    assert by_draw(pools / "base", "incomplete") == by_draw(pools / "base", "whole")


KILL = """
import os, pathlib, signal, sys
from offleash.eval.scoring import pool_scores, teacher_forcing
from offleash.train import cli
pool_scores.GROUP_ROWS = 5
real, parts = pathlib.Path.replace, 0
def replace(self, target):
    global parts
    parts += str(target).endswith(".parquet")
    if parts == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)
pathlib.Path.replace = replace
cli.main(["score", sys.argv[1], "--model", "lab", "--save-every", "0"])
"""


@pytest.mark.slow
def test_kill_9_between_writing_and_renaming_a_part_loses_only_that_part(
    pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.run([sys.executable, "-c", KILL, str(pools / "base")], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert len(scored(pools / "base", "lab").index_r) == 10
    monkeypatch.setattr(pool_scores, "GROUP_ROWS", 5)
    assert main(["score", str(pools / "base"), "--model", "lab"]) == 0
    assert main(["score", str(pools / "base"), "--model", "lab", "--name", "whole"]) == 0
    incomplete, whole = by_draw(pools / "base", "lab"), by_draw(pools / "base", "whole")
    assert incomplete.keys() == whole.keys()
    for key, values in whole.items():
        assert incomplete[key] == pytest.approx(values, rel=1e-6)


def test_scores_made_otherwise_are_refused_naming_the_field(
    pools: Path, tmp_path: Path, lab_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = perturb(lab_base, tmp_path / "model", seed=1)
    line = ["score", str(pools / "base"), "--model", str(model), "--k", "1"]
    assert main(line) == 0
    (name,) = [one.name for one in find_scores(Pool.open(pools / "base"))]
    capsys.readouterr()
    for words, said in ((["--temperature", "0.5"], "temperature: 1.0 -> 0.5"), (["--end-token", ""], "end_token: ")):
        assert main([*line, *words]) == 2
        assert said in capsys.readouterr().err
    perturb(lab_base, model, seed=2)
    capsys.readouterr()
    assert main(line) == 2
    error = capsys.readouterr().err
    assert "weights: " in error
    assert len(error.strip().splitlines()) == 1
    assert main([*line, "--name", "again"]) == 0
    assert {one.name for one in find_scores(Pool.open(pools / "base"))} == {name, "again"}


def test_the_same_model_by_another_path_continues_its_scores(pools: Path, lab_base: Path) -> None:
    assert main(["score", str(pools / "base"), "--model", "lab", "--k", "1"]) == 0
    assert main(["score", str(pools / "base"), "--model", str(lab_base)]) == 0
    assert [one.name for one in find_scores(Pool.open(pools / "base"))] == ["lab"]


def test_parts_that_are_damaged_or_of_other_scores_are_refused(pools: Path) -> None:
    pool = Pool.open(pools / "base")
    spec = ScoreSpec(
        pool=pool.spec.fingerprint(), model="m", revision="", weights="w", dtype="float32", template="t",
        temperature=1.0, end_token="",
    )  # fmt: skip
    row = {"problem_id": [pool.problem_ids[0]], "index": [0], "tokens": [3], "drawn_tokens": [None]}
    one = ScoreFolder.open_or_create(pool, "one", spec)
    one.append({**row, "logprob": [-1.5], "entropy": [math.nan]})
    rows = one.read()
    assert (rows.tokens_r[0], rows.logprob_r[0]) == (3, -1.5)
    assert math.isnan(rows.entropy_r[0])
    assert math.isnan(rows.drawn_r[0])
    (part,) = one.path.glob("scores-*")
    other = ScoreFolder.open_or_create(pool, "two", replace(spec, weights="v"))
    shutil.copy(part, other.path)
    with pytest.raises(PoolError, match=part.name):
        other.read()
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(PoolError, match=part.name):
        one.read()
    shutil.copytree(one.path, pools / "policy" / "scores" / "one")
    with pytest.raises(PoolError, match="scores/one"):
        ScoreFolder.open(Pool.open(pools / "policy"), "one")


# What compare makes of them.


@pytest.fixture
def compared() -> Callable[[Path], Any]:
    return lambda root: compare(root / "base", root / "policy", resamples=50)


def test_compare_shows_four_perplexities_the_entropy_and_the_kl(
    pools: Path, policy: Path, compared: Callable[[Path], Any]
) -> None:
    before = compared(pools).policies[0].overall
    assert {(row.drawn_by, row.under) for row in before.perplexity} == {("base", "itself"), ("policy", "itself")}
    assert before.rows["token_entropy"].base.n == 0
    line = ["score", str(pools / "base"), str(pools / "policy"), "--model", "lab", str(policy)]
    assert main(line) == 0
    comparison = compared(pools)
    scope = comparison.policies[0].overall
    names = {"base": "lab", "policy": next(s.name for s in find_scores(Pool.open(pools / "base")) if s.name != "lab")}

    def mean(drawn_by: str, under: str, what: str) -> float:
        rows = scored(pools / drawn_by, names[under])
        values = getattr(rows, what)
        return float(np.mean([values[rows.problem_r == p].mean() for p in range(PROBLEMS)]))

    got = {(row.drawn_by, row.under): row.estimates["all"] for row in scope.perplexity}
    assert len(got) == 4
    for drawn_by, other in (("base", "policy"), ("policy", "base")):
        assert got[drawn_by, "itself"].value == pytest.approx(math.exp(mean(drawn_by, drawn_by, "nll_r")))
        assert got[drawn_by, other].value == pytest.approx(math.exp(mean(drawn_by, other, "nll_r")))
        assert got[drawn_by, other].n == PROBLEMS
        entropy = getattr(scope.rows["token_entropy"], drawn_by)
        assert entropy.value == pytest.approx(mean(drawn_by, drawn_by, "entropy_r"))
    assert scope.rows["kl_base_k1"].policy.value == pytest.approx(
        mean("policy", "policy", "logprob_r") - mean("policy", "base", "logprob_r")
    )
    # Engine and scorer agree, so the perplexity under itself is what it was before.
    assert got["base", "itself"].value == pytest.approx(before.perplexity[0].estimates["all"].value, rel=1e-4)
    assert "base, under the policy" in text_report(comparison)
    assert any(re.search(rf"\b24\b.*{re.escape(names['policy'])}.*\b0 of 24\b", note) for note in comparison.notes)


def test_scores_are_of_every_completion_scored_at_whatever_k_support_is_compared(pools: Path, policy: Path) -> None:
    assert main(["score", str(pools / "base"), "--model", str(policy)]) == 0
    made = compare(pools / "base", pools / "policy", k=2, resamples=20)
    (name,) = [one.name for one in find_scores(Pool.open(pools / "base"))]
    rows = scored(pools / "base", name)
    expected = math.exp(np.mean([rows.nll_r[rows.problem_r == p].mean() for p in range(PROBLEMS)]))
    got = {(row.drawn_by, row.under): row.estimates["all"].value for row in made.policies[0].overall.perplexity}
    assert got["base", "policy"] == pytest.approx(expected)


def test_numbers_measured_differently_are_said_not_to_compare(
    pools: Path, policy: Path, compared: Callable[[Path], Any]
) -> None:
    assert main(["score", str(pools / "base"), "--model", "lab", "--k", "2"]) == 0
    assert any("NOT COMPARABLE: the policy's own" in note for note in compared(pools).notes)
    assert main(["score", str(pools / "policy"), "--model", str(policy), "--temperature", "0.5", "--k", "2"]) == 0
    comparison = compared(pools)
    assert any("NOT COMPARABLE: scores at temperatures 0.5 and 1" in note for note in comparison.notes)
    # log p - log p_base at another temperature than the draws' is no KL.
    assert main(["score", str(pools / "policy"), "--model", "lab", "--temperature", "0.5", "--k", "2"]) == 0
    assert compared(pools).policies[0].overall.rows["kl_base_k1"].policy.n == 0


def test_another_models_scores_are_not_taken_for_the_policys(
    pools: Path, tmp_path: Path, lab_base: Path, compared: Callable[[Path], Any]
) -> None:
    stranger = perturb(lab_base, tmp_path / "policy", seed=5)
    assert main(["score", str(pools / "base"), "--model", str(stranger)]) == 0
    assert all(row.under == "itself" for row in compared(pools).policies[0].overall.perplexity)


def test_transcripts_are_not_scored_as_if_the_model_had_written_all_of_them(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", hits=[1], k=2, engine="trl-vllm-multiturn")
    with pytest.raises(PoolError, match="transcripts"):
        pool_scores.score_pool(pool, "lab", progress=False)
    assert not (pool.path / "scores").exists()
