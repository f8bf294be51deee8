"""A worker's engine answers many threads at once, and its model is the driver's or is refused."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from offleash.eval.engines.base import Completion, Drawn, Engine, Request
from offleash.eval.engines.cluster.shared_engine import Model, SharedEngine
from offleash.eval.engines.model import resolve_model
from offleash.eval.errors import ConfigError, EngineError
from offleash.eval.sampling import Sampling

PLAIN = Sampling(max_new_tokens=20)


class Echo:
    """Says the seed; in pairs, so that it waits for nobody, and fails at the seed `fatal`."""

    name, block = "echo", 4

    def __init__(self, fatal: int = -1) -> None:
        self.fatal = fatal

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn]:
        for request in requests:
            if request.seed == self.fatal:
                raise MemoryError("no more room")
            yield Drawn(request, [Completion(str(request.seed), 1, -1.0, "stop")] * request.n)

    def close(self) -> None: ...


def test_threads_that_ask_at_once_each_get_their_own_answers() -> None:
    engine, found = SharedEngine(Echo, PLAIN), dict[int, list[str]]()

    def ask(thread: int) -> None:
        asked = [Request(0, [1], 0, 1, 100 * thread + i) for i in range(50)] + [Request(0, [1], 0, 1, 7)]
        found[thread] = sorted(drawn.completions[0].text for drawn in engine.generate(asked))

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {t: sorted([str(100 * t + i) for i in range(50)] + ["7"]) for t in range(1, 9)}


def test_an_engine_that_fails_answers_everybody_with_the_reason() -> None:
    engine = SharedEngine(lambda: Echo(fatal=3), PLAIN)
    drawn = []
    with pytest.raises(EngineError, match="MemoryError: no more room"):
        drawn.extend(engine.generate(Request(0, [1], 0, 1, seed) for seed in (1, 2, 3, 4)))
    with pytest.raises(EngineError, match="MemoryError: no more room"):
        next(engine.generate([Request(0, [1], 0, 1, 1)]))

    def broken() -> Engine:
        raise ConfigError("there is no model 'here'")

    with pytest.raises(EngineError, match="there is no model 'here'"):
        next(SharedEngine(broken, PLAIN).generate([Request(0, [1], 0, 1, 1)]))


def test_a_worker_finds_the_drivers_model_wherever_the_driver_stood(
    tmp_path: Path, lab_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").symlink_to(lab_base)
    monkeypatch.chdir(tmp_path)
    source = resolve_model("copy")
    model = Model.of(source)
    monkeypatch.chdir("/")
    found = model.find()
    assert (found.weights, found.end_ids, found.dtype) == (source.weights, source.end_ids, source.dtype)
    with pytest.raises(ConfigError, match=" tokenizer "):
        model._replace(template="0" * 64).find()
