"""Token entropy and log-probability of one long sequence: peak memory and time, three ways.

    python bench/scoring.py --tokens 4096

naive     all logits, log_softmax, entropy: what one would write first
TRL       the fused head of TRL's GRPO trainer (log_probs and entropy)
Offleash  offleash.eval.scoring.teacher_forcing.score

Each way runs in its own process on the same random model (vocabulary 151,936, as in Qwen); peak memory is on top of
what the process holds once the model is loaded and warm.
"""

import argparse
import multiprocessing
import resource
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = 8


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=151_936, tie_word_embeddings=True, **sizes)).eval()


def naive(model: LlamaForCausalLM, ids: list[int]) -> tuple[float, float]:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, PROMPT - 1 : -1].float()
        logps = torch.log_softmax(logits, -1)
        entropy = -(logps.exp() * logps).sum(-1).mean()
        return float(logps.gather(1, torch.tensor(ids[PROMPT:])[:, None]).sum()), float(entropy)


def trl_fused(model: LlamaForCausalLM, ids: list[int]) -> tuple[float, float]:
    labels = torch.tensor([[-100] * PROMPT + ids[PROMPT:]])
    with torch.no_grad():
        out = model(torch.tensor([ids]), labels=labels, fused_lm_head=True)
    count = len(ids) - PROMPT
    return float(out.log_probs[:, -count:].sum()), float(out.entropy[:, -count:].mean())


def offleash(model: LlamaForCausalLM, ids: list[int]) -> tuple[float, float]:
    from offleash.eval.scoring.teacher_forcing import score

    scores = score(model, [ids[:PROMPT]], [ids[PROMPT:]])
    return float(scores.logprob_s[0]), float(scores.entropy_s[0])


WAYS: dict[str, Callable[[LlamaForCausalLM, list[int]], tuple[float, float]]] = {
    "naive": naive,
    "TRL": trl_fused,
    "Offleash": offleash,
}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_while(work: Callable[[], object]) -> int:
    """Peak resident memory while `work` runs, sampled every millisecond."""
    peak, done = resident(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak


def measure(way: str, tokens: int, repeats: int, out: Connection) -> None:
    model = make_model()
    if way == "TRL":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.randint(0, 151_936, (tokens + PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()
    WAYS[way](model, ids[:64])
    held = resident()
    peak = peak_while(lambda: WAYS[way](model, ids))
    times, result = [], (0.0, 0.0)
    for _ in range(repeats):
        start = time.perf_counter()
        result = WAYS[way](model, ids)
        times.append(time.perf_counter() - start)
    out.send((peak - held, statistics.median(times), result))


def main(argv: Sequence[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    context = multiprocessing.get_context("spawn")
    rows = {}
    for way in WAYS:
        ours, theirs = context.Pipe()
        process = context.Process(target=measure, args=(way, options.tokens, options.repeats, theirs))
        process.start()
        rows[way] = ours.recv()
        process.join()
    head = f"{'peak MiB':>9} {'of naive':>9} {'seconds':>8} {'of TRL':>7} {'logprob':>14} {'entropy':>9}"
    print(f"{f'{options.tokens} tokens':12} {head}")
    for way, (peak, seconds, (logprob, entropy)) in rows.items():
        print(
            f"{way:12} {peak / 2**20:9.0f} {peak / rows['naive'][0]:9.3f} {seconds:8.2f} "
            f"{seconds / rows['TRL'][1]:7.2f} {logprob:14.3f} {entropy:9.5f}"
        )
    return [
        ("scoring: peak memory against a naive pass", rows["Offleash"][0] / rows["naive"][0]),
        ("scoring: seconds against TRL's fused head", rows["Offleash"][1] / rows["TRL"][1]),
    ]


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main(["--tokens", "512", "--repeats", "1"])


if __name__ == "__main__":
    main()
