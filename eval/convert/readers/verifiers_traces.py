"""verifiers and prime-rl: `traces.jsonl`, one line per episode, and `results.jsonl` of verifiers before 0.2.

An episode has a task and the traces of its agents. A trace is a graph of messages (`nodes`, each naming its `parent`)
with named rewards; the conversation is the path to the last node that nothing follows. prime-rl writes the same below
`rollouts/step_{step}/{train,eval}/{all,effective}/` and says which step dispatched an episode (`run.work.step`).

Only traces of trainable agents are samples, where there are any: judges and simulated users are not the policy. Of
several trainable agents one is chosen with --filter. An episode that failed counts with status "error".
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from offleash.eval.convert.readers.record import (
    Prompt,
    Reading,
    Record,
    chosen_score,
    given_answer,
    given_prompt,
    gold_text,
    judged,
    question_of,
    verdict,
)
from offleash.eval.convert.readers.values import (
    BadRow,
    as_completion,
    as_integer,
    as_items,
    as_logprob,
    as_number,
    as_object,
    as_prompt,
    as_text,
)
from offleash.eval.tasks.loading import content_id

COLUMNS = frozenset({"task", "traces"})
FORMER_COLUMNS = frozenset({"example_id", "completion", "reward"})
TOTAL = "reward"
"""The weighted sum of all rewards, as verifiers calls it."""
_CUT = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length")
_GOLDS = ("answer", "gold", "ground_truth", "target", "solution")


def trace_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    task = as_object(row["task"], "task")
    data = as_object(task.get("data") or {}, "task.data")
    traces = [as_object(trace, "each of traces") for trace in as_items(row["traces"], "traces")]
    run = row.get("run")
    work = run.get("work") if isinstance(run, Mapping) else None
    work = work if isinstance(work, Mapping) else {}
    shared: dict[str, Any] = {
        "gold": next((gold_text(data[name]) for name in _GOLDS if data.get(name) is not None), None),
        "step": as_integer(work.get("step"), "run.work.step"),
        "kind": str(work.get("type") or ""),
    }
    prompt = _task_prompt(data)
    problem_id = str(task.get("key") or task.get("hash") or content_id("task", json.dumps(data, sort_keys=True)))
    key = str(row.get("id") or "")
    if not traces:
        failed = False if reading.verdicts else None
        return [Record(problem_id, completion="", correct=failed, status="error", prompt=prompt, key=key, **shared)]
    made = []
    for number, trace in enumerate(_of_policy(traces)):
        agent = _agent(trace)
        if not reading.filter or reading.filter == agent:
            record = _record(trace, reading, Record(problem_id, prompt=prompt, filter=agent, **shared))
            record.key = str(trace.get("id") or (f"{key}/{number}" if key else ""))
            made.append(record)
    return made


def _record(trace: Mapping[str, Any], reading: Reading, record: Record) -> Record:
    """The record with what the trace says."""
    path = _conversation([as_object(node, "each of nodes") for node in as_items(trace.get("nodes"), "nodes")])
    said = [node for node in path if node.get("sampled")]
    first = path.index(said[0]) if said else len(path)
    if record.prompt is None and first:
        record.prompt = given_prompt([_plain(node) for node in path[:first]], "nodes")
    record.question = question_of(record.prompt) if record.prompt is not None else ""
    record.completion = as_completion([_plain(node) for node in said])
    record.tokens, record.logprob = _measured(said, as_items(trace.get("calls"), "calls"))
    record.truncated = _truncated(trace)
    record.answer, record.answered = given_answer(as_object(trace.get("info") or {}, "info"), reading)
    if not trace.get("ok", not trace.get("errors")):
        record.status, record.correct = "error", False if reading.verdicts else None
    elif reading.verdicts:
        record.correct, record.judged_by = _judged(trace, reading)
    return record


def _judged(trace: Mapping[str, Any], reading: Reading) -> tuple[bool, str]:
    """By a reward, by their sum, or by a metric if it is asked for."""
    rewards = {name: _score(value) for name, value in as_object(trace.get("rewards") or {}, "rewards").items()}
    scores = {name: score for name, (score, _) in rewards.items()}
    if reading.correct or len(scores) > 1:
        total = sum(score * weight for score, weight in rewards.values() if score is not None)
        scores = {**as_object(trace.get("metrics") or {}, "metrics"), TOTAL: total, **scores}
    name = chosen_score(scores, reading)
    return verdict(scores[name], name, reading), name


def _score(reward: Any) -> tuple[float | None, float]:
    if reward is None:
        return None, 1.0
    reward = as_object(reward, "each of rewards")
    weight = as_number(reward.get("weight"), "weight")
    return as_number(reward.get("score"), "score"), 1.0 if weight is None else weight


def _of_policy(traces: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    trainable = [trace for trace in traces if as_object(trace.get("agent") or {}, "agent").get("trainable", True)]
    return trainable or traces


def _agent(trace: Mapping[str, Any]) -> str:
    return str(as_object(trace.get("agent") or {}, "agent").get("name") or "agent")


def _conversation(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The nodes from the root to the last leaf. A parent comes before its children, so that no path is endless."""
    parents = [as_integer(node.get("parent"), "parent") for node in nodes]
    for place, parent in enumerate(parents):
        if parent is not None and parent >= place:
            raise BadRow(f"node {place} has the parent {parent}, which does not come before it")
    followed = set(parents)
    leaf = max((place for place in range(len(nodes)) if place not in followed), default=None)
    path: list[Mapping[str, Any]] = []
    while leaf is not None:
        path.append(nodes[leaf])
        leaf = parents[leaf]
    return path[::-1]


def _plain(node: Mapping[str, Any]) -> dict[str, Any]:
    """Speaker and text of a node: ids, reasoning and tool calls differ from sample to sample of one prompt."""
    message = as_object(node.get("message"), "message")
    return {"role": message.get("role", "assistant"), "content": message.get("content") or ""}


def _measured(said: Sequence[Mapping[str, Any]], calls: Sequence[Any]) -> tuple[int | None, float | None]:
    """(tokens, log-probability) that the model sampled; the tokens of the provider's bill if it gave no token ids."""
    tokens = sum(sum(map(bool, as_items(node.get("mask"), "mask"))) for node in said)
    given = [one for node in said for one in as_items(node.get("logprobs"), "logprobs")]
    logprobs = [one for one in (as_logprob(one, "logprobs") for one in given) if one is not None]
    if tokens:
        return tokens, sum(logprobs) if len(logprobs) == tokens else None
    used = [call.get("usage") for call in calls if isinstance(call, Mapping)]
    billed = [as_integer(usage.get("completion_tokens"), "completion_tokens") for usage in used if usage]
    return sum(one or 0 for one in billed) if billed and len(billed) == len(used) else None, None


def _truncated(trace: Mapping[str, Any]) -> bool:
    calls = [as_object(call, "each of calls") for call in as_items(trace.get("calls"), "calls")]
    answered = [call for call in calls if call.get("error") is None]
    is_cut = bool(answered) and answered[-1].get("finish_reason") == "length"
    return is_cut or trace.get("stop_condition") in _CUT


def _task_prompt(data: Mapping[str, Any]) -> Prompt | None:
    """The prompt of a task, after its system prompt; None where the agent or a simulated user opens."""
    if data.get("prompt") is None:
        return None
    prompt, system = given_prompt(data["prompt"], "task.data.prompt"), data.get("system_prompt")
    if not system:
        return prompt
    said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [{"role": "system", "content": as_text(system, "system_prompt")}, *said]


def former_verifiers_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    usage, failed = row.get("token_usage"), row.get("error") is not None
    metrics = row.get("metrics") if reading.correct and isinstance(row.get("metrics"), Mapping) else {}
    scores = {**(metrics or {}), "reward": row["reward"]}
    correct, judged_by = (False if reading.verdicts else None, "") if failed else judged(scores, reading, "reward")
    tokens = usage.get("output_tokens") if isinstance(usage, Mapping) else None
    return [
        Record(
            str(row["example_id"]),
            completion=as_completion(row["completion"]),
            correct=correct,
            judged_by=judged_by,
            status="error" if failed else None,
            truncated=bool(row["is_truncated"]) if "is_truncated" in row else None,
            tokens=as_integer(tokens, "output_tokens"),
            prompt=as_prompt(row.get("prompt")),
            gold=as_text(row.get("answer"), "answer"),
        )
    ]
