"""reasoning-gym's own scorers, as a job for a killable worker. Imported only inside workers.

Several of them execute the answer, hang, raise on what they cannot read, or change the problem they score: each job
gets its own copy of the problem, and `answers` has already rejected whatever could execute code. A module of its
own, so that workers are forked from a process that has reasoning-gym imported (5 seconds).
"""

import base64
import functools
import json
import pickle
from typing import Any

import reasoning_gym


def score(job: dict[str, str]) -> float:
    """The score of job["answer"]. The problem comes pickled from our own parent process, which is trusted.

    A scorer that raises means that the answer is malformed, and wrong; one that raised on golds as well would be found
    by the check of the golds.
    """
    entry = pickle.loads(base64.b64decode(job["entry"]))
    scorer = dataset(job["dataset"], job["config"])
    try:
        return float(scorer.score_answer(job["answer"], entry))
    except MemoryError:
        raise
    except Exception:
        return 0.0


@functools.lru_cache(maxsize=8)
def dataset(name: str, config: str) -> Any:
    return reasoning_gym.create_dataset(name, **(json.loads(config) | {"size": 1, "seed": 0}))
