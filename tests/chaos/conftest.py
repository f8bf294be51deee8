"""Faults in a random order. Every test here is marked chaos, and slow: `make chaos` and `make test-all` run them."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faulty_server import FaultyServer

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> random.Random:
    """Chance, with a seed that a failing test prints and OFFLEASH_CHAOS_SEED (`make chaos SEED=7`) repeats."""
    seed = os.environ.get("OFFLEASH_CHAOS_SEED") or random.randrange(10**6)
    print(f"chaos: repeat this with make chaos SEED={seed}")
    return random.Random(f"{seed}/{request.node.name}")


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    made = FaultyServer()
    yield made
    made.close()
