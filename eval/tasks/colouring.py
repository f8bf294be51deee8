"""Graph colouring: give every node a colour so that no edge joins two nodes of one colour. All answers are listed.

The prompt is the list of edges, `ab ac bc cd:`, and the completion one letter per node in alphabetical order, here
`RGBR`. Colours have names, so every proper colouring is an answer of its own: `RGBR` and `GRBG` differ. A completion
is an answer only if it is exactly one colour letter for every node: nothing before, between or after. So an answer has
one text, and its probability under a model is that text's.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.generated import check_draw, check_integer, draw, take

NODES = "abcdefgh"
COLOURS = "RGBY"

Edge = tuple[int, int]


@lru_cache(maxsize=1 << 16)
def _colourings(nodes: int, colours: int, edges: tuple[Edge, ...]) -> tuple[str, ...]:
    """Every proper colouring, sorted: node by node, each in the colours that no earlier neighbour has."""
    earlier = [[a for a, b in edges if b == node] for node in range(nodes)]
    found = [""]
    for node in range(nodes):
        found = [
            text + colour
            for text in found
            for colour in COLOURS[:colours]
            if all(text[neighbour] != colour for neighbour in earlier[node])
        ]
    return tuple(sorted(found))


def _is_connected(nodes: int, edges: Sequence[Edge]) -> bool:
    reached, frontier = {0}, [0]
    while frontier:
        node = frontier.pop()
        near = {b if a == node else a for a, b in edges if node in (a, b)} - reached
        reached |= near
        frontier.extend(near)
    return len(reached) == nodes


class Colouring:
    """`n` connected graphs of one split, each with at least one proper colouring.

    The number of edges is uniform between `min_edges` and `max_edges`. The splits are disjoint whatever the seed and
    size, and a bigger `n` only adds problems at the end. `meta` holds `nodes`, `colours` and `edges`.
    """

    name = "colouring"
    version = "1"

    def __init__(
        self,
        split: str = "probe",
        n: int = 128,
        seed: int = 0,
        nodes: int = 6,
        colours: int = 3,
        min_edges: int = 6,
        max_edges: int = 9,
    ) -> None:
        check_draw(self.name, split, n, seed)
        for name, value, low, high in (
            ("nodes", nodes, 2, len(NODES)),
            ("colours", colours, 2, len(COLOURS)),
            ("min_edges", min_edges, 1, None),
            ("max_edges", max_edges, 1, None),
        ):
            check_integer(self.name, name, value, low, high)
        fewest, most = max(min_edges, nodes - 1), min(max_edges, nodes * (nodes - 1) // 2)
        if fewest > most:
            raise ConfigError(
                f"{self.name}: no connected graph of {nodes} nodes has between {min_edges} and {max_edges} edges"
            )
        self.split = split
        pairs = list(combinations(range(nodes), 2))

        def propose(rng: np.random.Generator) -> tuple[str, tuple[Edge, ...]]:
            count = int(rng.integers(fewest, most + 1))
            edges = tuple(pairs[i] for i in sorted(rng.choice(len(pairs), count, replace=False).tolist()))
            return _listed(edges), edges

        def keep(edges: tuple[Edge, ...]) -> bool:
            return _is_connected(nodes, edges) and bool(_colourings(nodes, colours, edges))

        limits = f"{nodes} nodes, {colours} colours and {fewest} to {most} edges"
        graphs = take(self.name, split, n, draw(split, seed, propose, keep), limits)
        self.problems: list[Problem] = [_problem(nodes, colours, edges) for edges in graphs]

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        """One verdict per pair. A truncated completion has no answer."""
        flags = [False] * len(completions) if truncated is None else truncated
        return [_judge(*one) for one in zip(problems, completions, flags, strict=True)]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]:
        """All proper colourings, sorted."""
        meta = problem.meta
        return _colourings(meta["nodes"], meta["colours"], tuple((a, b) for a, b in meta["edges"]))

    def spellings(self, problem: Problem, answer: str) -> tuple[str, ...]:
        """The one text of an answer."""
        return (answer,)


def _listed(edges: Sequence[Edge]) -> str:
    return " ".join(NODES[a] + NODES[b] for a, b in edges)


def _problem(nodes: int, colours: int, edges: tuple[Edge, ...]) -> Problem:
    listed = _listed(edges)
    return Problem(
        id="-".join(["colouring", str(colours), *listed.split()]),
        prompt=f"{listed}:",
        gold=_colourings(nodes, colours, edges)[0],
        meta={"nodes": nodes, "colours": colours, "edges": [list(edge) for edge in edges]},
    )


def _judge(problem: Problem, completion: str, truncated: bool) -> Verdict:
    if truncated:
        return Verdict(None, False, "truncated")
    meta = problem.meta
    if len(completion) != meta["nodes"] or not set(completion) <= set(COLOURS[: meta["colours"]]):
        return Verdict(None, False, "no_answer")
    proper = all(completion[a] != completion[b] for a, b in meta["edges"])
    return Verdict(completion, proper, "ok", "colouring")
