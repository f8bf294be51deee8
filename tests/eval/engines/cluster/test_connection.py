"""How a cluster is shared: every engine has its GPUs, and a fair part of its machine's CPUs."""

from types import SimpleNamespace
from typing import Any

import pytest

from offleash.eval.engines.cluster.connection import resources_of
from offleash.eval.errors import ConfigError


def cluster(*machines: tuple[int, int]) -> Any:
    """Of machines with so many CPUs and GPUs, and one that is gone."""
    total = {"CPU": float(sum(cpus for cpus, _ in machines)), "GPU": float(sum(gpus for _, gpus in machines))}
    nodes = [{"Alive": True, "Resources": {"CPU": float(cpus), "GPU": float(gpus)}} for cpus, gpus in machines]
    gone = {"Alive": False, "Resources": {}}
    return SimpleNamespace(cluster_resources=lambda: total, nodes=lambda: [*nodes, gone])


@pytest.mark.parametrize(
    ("machines", "parallel", "engines", "cpus"),
    [
        ([(96, 8)], 1, 8, 12),
        ([(96, 8)], 2, 4, 24),
        ([(96, 8), (16, 0)], 1, 8, 12),  # a head without GPUs has none of the engines
        ([(96, 8), (32, 8)], 1, 16, 4),
        ([(4, 8)], 1, 8, 1),
    ],
)
def test_engines_that_fill_a_machine_s_gpus_share_its_cpus(
    machines: list[tuple[int, int]], parallel: int, engines: int, cpus: int
) -> None:
    found = resources_of(cluster(*machines), None, {"tensor_parallel_size": parallel})
    assert found == {"workers": engines, "num_gpus": parallel, "num_cpus": cpus}


def test_without_gpus_the_workers_share_the_cpus() -> None:
    assert resources_of(cluster((8, 0), (8, 0)), None, {}) == {"workers": 2, "num_cpus": 8}
    assert resources_of(cluster((8, 0)), 4, {}) == {"workers": 4, "num_cpus": 2}


def test_an_engine_on_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="16 GPUs"):
        resources_of(cluster((96, 8)), None, {"tensor_parallel_size": 16})
