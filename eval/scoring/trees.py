"""Log-probabilities of many completions of the same prompts: tokens that completions share are evaluated once.

The completions of a prompt form a tree of tokens. A tree is one row of the forward pass: the prompt, then the tree's
nodes, each attending to the prompt, to its ancestors and to itself, at the position that it has in its completions. A
model that does not take such a mask gets every completion as a row of its own, and a line says so.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from offleash.eval.console import say
from offleash.eval.errors import ConfigError, first_line
from offleash.eval.scoring.teacher_forcing import CHUNK_BYTES, check_head, evaluating, head_logits

TREE_TOKENS = 256
"""Nodes of a tree: beyond a few hundred, a row costs more in attention than it saves in shared tokens."""
_CHECKED = 4
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.25


class Tree(NamedTuple):
    """Node 0 is the prompt's last token; the others are tokens of completions, parents before their children."""

    prompt: Sequence[int]
    tokens: list[int]
    """Of nodes 1, 2, ..."""
    parents: list[int]
    """Of nodes 1, 2, ..."""
    completions: list[int]
    """Which completions the tree holds."""
    paths: list[list[int]]
    """The nodes of each of them, without node 0."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.tokens)


def completion_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[tuple[int, Sequence[int]]],
    *,
    end_token_ids: Sequence[int],
    temperature: float = 1.0,
    batch_tokens: int = 16384,
    tree_tokens: int = TREE_TOKENS,
) -> list[np.ndarray]:
    """The log-probability of each token of each completion and, last, of ending with one of `end_token_ids`.

    A completion is given as the number of its prompt and its tokens without the end. `tree_tokens=0` evaluates each on
    its own.
    """
    if temperature <= 0:
        raise ConfigError(f"temperature must be positive to score, got {temperature}")
    if any(len(prompt) == 0 for prompt in prompts):
        raise ConfigError("a prompt has no tokens: the first token of its completion has no distribution to score")
    found: list[np.ndarray] = [np.zeros(0)] * len(completions)
    trees = list(_trees(prompts, completions, tree_tokens))
    with evaluating(model):
        if trees:
            check_head(model, [*trees[0].prompt, *trees[0].tokens[: len(trees[0].paths[0])]])
        if (refusal := _refusal(model, trees, end_token_ids, temperature)) is not None:
            say(f"offleash: {type(model).__name__} does not take a tree of completions ({refusal}): one row for each")
            trees = list(_trees(prompts, completions, 0))
        for batch in _batches(trees, batch_tokens):
            for tree, logprobs in zip(batch, _evaluate(model, batch, end_token_ids, temperature), strict=True):
                for completion, logprob in zip(tree.completions, logprobs, strict=True):
                    found[completion] = logprob
    return found


def _trees(
    prompts: Sequence[Sequence[int]], completions: Sequence[tuple[int, Sequence[int]]], tree_tokens: int
) -> Iterator[Tree]:
    """Completions in the order of their tokens, so that neighbours share the most; another tree once one is full."""
    tree: Tree | None = None
    nodes: dict[tuple[int, int], int] = {}
    for completion in sorted(range(len(completions)), key=lambda c: (completions[c][0], tuple(completions[c][1]))):
        prompt, ids = completions[completion]
        if tree is None or tree.prompt is not prompts[prompt] or len(tree.tokens) >= tree_tokens:
            if tree is not None:
                yield tree
            tree, nodes = Tree(prompts[prompt], [], [], [], []), {}
        path, node = [], 0
        for token in ids:
            if (child := nodes.get((node, token))) is None:
                tree.tokens.append(token)
                tree.parents.append(node)
                child = nodes[node, token] = len(tree.tokens)
            path.append(node := child)
        tree.completions.append(completion)
        tree.paths.append(path)
    if tree is not None:
        yield tree


def _batches(trees: Sequence[Tree], batch_tokens: int) -> list[list[Tree]]:
    """Trees of similar length, at most `batch_tokens` padded tokens together."""
    batches: list[list[Tree]] = []
    for tree in sorted(trees, key=len, reverse=True):
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0]) <= batch_tokens:
            batches[-1].append(tree)
        else:
            batches.append([tree])
    return batches


def _refusal(model: Any, trees: Sequence[Tree], ends: Sequence[int], temperature: float) -> str | None:
    """Why this model cannot evaluate trees: an error, or other values than row by row. None if it can.

    Some kinds of attention refuse the mask, others (sliding windows, recurrent layers) would not heed it.
    """
    tree = max((tree for tree in trees if not _is_chain(tree)), key=lambda tree: len(tree.tokens), default=None)
    if tree is None:
        return None
    # The last ones lie farthest from the prompt.
    chosen = sorted(
        {*range(len(tree.paths))[-_CHECKED:], max(range(len(tree.paths)), key=lambda c: len(tree.paths[c]))}
    )
    rows = list(_trees([tree.prompt], [(0, [tree.tokens[n - 1] for n in tree.paths[c]]) for c in chosen], 0))
    try:
        (together,) = _evaluate(model, [tree], ends, temperature)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {first_line(error, 80)}"
    alone = {
        row.completions[0]: one for row, (one,) in zip(rows, _evaluate(model, rows, ends, temperature), strict=True)
    }
    largest = max(float(np.abs(together[c] - alone[place]).max()) for place, c in enumerate(chosen))
    agrees = largest <= _TOLERANCE.get(model.get_input_embeddings().weight.dtype, _HALF_TOLERANCE)
    return None if agrees else f"its log-probabilities differ by up to {largest:.2g}"


def _evaluate(model: Any, trees: Sequence[Tree], ends: Sequence[int], temperature: float) -> list[list[np.ndarray]]:
    """Per tree and completion the log-probability of every token and of the end; one forward pass."""
    device = model.get_input_embeddings().weight.device
    rows = [torch.tensor([*tree.prompt, *tree.tokens]) for tree in trees]
    input_ids = pad_sequence(rows, batch_first=True).to(device)
    hidden = model.get_decoder()(
        input_ids=input_ids, use_cache=False, **_attention(model, trees, input_ids.shape[1], device)
    ).last_hidden_state
    hidden_n = torch.cat([hidden[r, len(tree.prompt) - 1 : len(tree)] for r, tree in enumerate(trees)])
    del hidden
    starts = np.cumsum([0, *(len(tree.tokens) + 1 for tree in trees)])
    sources = [start + node for start, tree in zip(starts, trees, strict=False) for node in tree.parents]
    targets = [token for tree in trees for token in tree.tokens]
    last = [
        start + (path[-1] if path else 0) for start, tree in zip(starts, trees, strict=False) for path in tree.paths
    ]
    logprob_e = _edge_logprobs(
        model, hidden_n, np.array([*sources, *np.repeat(last, len(ends))]), np.array([*targets, *[*ends] * len(last)]),
        temperature,
    )  # fmt: skip
    token_e = logprob_e[: len(sources)]
    end_c = iter(np.logaddexp.reduce(logprob_e[len(sources) :].reshape(len(last), len(ends)), axis=1))
    edges = starts[:-1] - np.arange(len(trees))  # a tree has one edge less than nodes
    return [
        [np.append(token_e[edge + np.array(path, dtype=np.int64) - 1], next(end_c)) for path in tree.paths]
        for edge, tree in zip(edges, trees, strict=True)
    ]


def _attention(model: Any, trees: Sequence[Tree], width: int, device: torch.device) -> dict[str, torch.Tensor]:
    """The mask and positions of padded rows. Plain causal attention for rows of one completion each."""
    if all(_is_chain(tree) for tree in trees):
        lengths = torch.tensor([len(tree) for tree in trees], device=device)
        return {"attention_mask": (torch.arange(width, device=device) < lengths[:, None]).long()}
    seen, positions = np.zeros((len(trees), width, width), dtype=bool), np.zeros((len(trees), width), dtype=np.int64)
    for r, tree in enumerate(trees):
        first = len(tree.prompt)
        seen[r, :first, :first] = np.tri(first, dtype=bool)
        positions[r, :first] = np.arange(first)
        for node, parent in enumerate(tree.parents):
            above, here = first - 1 + parent, first + node
            seen[r, here] = seen[r, above]
            seen[r, here, here] = True
            positions[r, here] = positions[r, above] + 1
    dtype = model.get_input_embeddings().weight.dtype
    # Added to the attention scores: both of transformers' own implementations take it. A number instead of minus
    # infinity, so that padding, which sees nothing, has no NaN; one that stays a number in 32 bits, in which the eager
    # implementation takes its softmax whatever the model's dtype.
    unseen = max(torch.finfo(dtype).min, -1e30)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), unseen)
    return {"attention_mask": mask[:, None].to(device), "position_ids": torch.from_numpy(positions).to(device)}


def _is_chain(tree: Tree) -> bool:
    return len(tree.paths) == 1


def _edge_logprobs(
    model: Any, hidden_n: torch.Tensor, source_e: np.ndarray, target_e: np.ndarray, temperature: float
) -> np.ndarray:
    """The log-probability of token `target_e` after node `source_e`; logits exist a few hundred nodes at a time."""
    order = np.argsort(source_e, kind="stable")
    source_s, target_s = source_e[order], target_e[order]
    vocabulary = model.get_output_embeddings().weight.shape[0]
    chunk = min(max(CHUNK_BYTES // (4 * vocabulary), 1), len(hidden_n))
    logits = torch.empty(chunk, vocabulary, device=hidden_n.device)
    found = np.empty(len(source_e))
    for start in range(0, len(hidden_n), chunk):
        part = hidden_n[start : start + chunk]
        edges = slice(*np.searchsorted(source_s, [start, start + len(part)]))
        here = head_logits(model, part, out=logits[: len(part)]).div_(temperature)
        row, token = (torch.from_numpy(values).to(here.device) for values in (source_s[edges] - start, target_s[edges]))
        found[order[edges]] = (here[row, token].double() - here.logsumexp(-1).double()[row]).cpu().numpy()
    return found
