"""Two real processes with gloo: shares of work, and errors of one of them that both learn."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, sys, time
from datetime import timedelta
from accelerate import PartialState
from offleash.callbacks.policy.ranks import Ranks
from offleash.eval.errors import VerifyError

state = PartialState(cpu=True, backend="gloo", timeout=timedelta(seconds=60))
ranks, found = Ranks(state), {}

def told(work):
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def doubled(items):
    seen.append(list(items))
    return [2 * item for item in items]

def broken(items):
    if 4 in items:
        raise VerifyError("the judge is down")
    return items

def unpicklable(items):
    if state.process_index == 1:
        class Odd(Exception):
            pass
        raise Odd("no number")
    return items

def slow(items):
    time.sleep(0.3 * len(items))
    return items

for count in (0, 1, 5):
    seen = []
    found[f"divided {count}"] = ranks.divide(list(range(count)), doubled), seen[0]
start = time.monotonic()
ranks.divide(list(range(10)), slow)
found["seconds"] = time.monotonic() - start
found["broken"] = told(lambda: ranks.divide(list(range(6)), broken))
found["unpicklable"] = told(lambda: ranks.divide(list(range(6)), unpicklable))
seen = []
results = []
ranks.led_by_main(lambda help_: results.extend(help_(list(range(2500)))), doubled)
found["led"] = results == [2 * i for i in range(2500)] if state.is_main_process else sum(map(len, seen))
found["led broken"] = told(lambda: ranks.led_by_main(lambda help_: help_(list(range(6))), broken))
found["leader broken"] = told(lambda: ranks.led_by_main(lambda help_: 1 / 0, doubled))
own = [(state.process_index, i) for i in range(1300 * state.process_index)]
found["gathered"] = [len(block) for block in ranks.gathered(own)]
found["in order"] = [one for block in ranks.gathered(own) for one in block] == [(1, i) for i in range(1300)]
found["gathered none"] = list(ranks.gathered([]))
inside = lambda: ranks.divide(list(range(6)), broken)
found["told inside"] = told(lambda: ranks.on_all(inside, waits=True))
found["still together"] = ranks.divide([1, 2, 3], doubled)
found["alone inside"] = told(lambda: ranks.on_all(lambda: 1 / state.process_index, waits=True))
with open(f"{sys.argv[1]}/{state.process_index}.json", "w") as file:
    json.dump(found, file)
state.wait_for_everyone()
state.destroy_process_group()
os._exit(0)  # gloo's threads may abort an interpreter that is shutting down
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in both:
        _, said = process.communicate(timeout=180)
        assert process.returncode == 0, said[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.long
def test_each_rank_works_on_a_share_and_has_all_results_in_order(found):
    for rank in range(2):
        assert found[rank]["divided 0"] == [[], []]
        assert found[rank]["divided 5"] == [[0, 2, 4, 6, 8], list(range(5))[rank::2]]
    assert [found[rank]["divided 1"] for rank in range(2)] == [[[0], [0]], [[0], []]]


@pytest.mark.long
def test_two_ranks_take_half_the_time(found):
    assert all(1.5 <= one["seconds"] < 2.7 for one in found)  # 10 items of 0.3 s each


@pytest.mark.long
def test_what_ranks_have_is_exchanged_in_blocks_also_if_one_has_nothing(found):
    assert [one["gathered"] for one in found] == [[512, 512, 276]] * 2
    assert all(one["in order"] for one in found)
    assert [one["gathered none"] for one in found] == [[], []]


def test_an_error_on_one_rank_is_raised_on_both(found):
    assert [one["broken"] for one in found] == ["VerifyError: the judge is down"] * 2
    assert found[0]["unpicklable"] == "RemoteError: process 1: Odd: no number"
    assert found[1]["unpicklable"] == "Odd: no number"
    assert all(one["still together"] == [2, 4, 6] for one in found)


@pytest.mark.long
def test_the_others_help_the_main_process_block_by_block_and_learn_its_error(found):
    assert [one["led"] for one in found] == [True, 1250]
    assert [one["led broken"] for one in found] == ["VerifyError: the judge is down"] * 2
    assert found[0]["leader broken"] == "ZeroDivisionError: division by zero"
    assert found[1]["leader broken"] == "RemoteError: process 0: ZeroDivisionError: division by zero"


@pytest.mark.long
def test_an_error_that_nobody_was_told_ends_the_run_and_one_that_all_were_told_does_not(found):
    assert [one["told inside"] for one in found] == ["VerifyError: the judge is down"] * 2
    assert found[0]["alone inside"].startswith("EngineError: process 0: ZeroDivisionError: division by zero; the other")
    assert found[1]["alone inside"] == 1.0
