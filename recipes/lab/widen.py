"""The embedded model with heads of 32 instead of 24, which vLLM's kernels for CPUs do not know.

    python recipes/lab/widen.py FOLDER

It is the same function: what is added to the heads is 0, the larger scale is made up for in the queries, and with
another base of the rotary embedding the frequencies in use stay what they were.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

BASE = Path(__file__).parent / "base"
OLD, NEW = 24, 32


def widen(folder: Path) -> None:
    """Write the wider model into a folder."""
    model, config = AutoModelForCausalLM.from_pretrained(BASE, dtype="float32"), AutoConfig.from_pretrained(BASE)
    config.head_dim, heads = NEW, config.num_attention_heads
    config.rope_parameters["rope_theta"] **= NEW / OLD
    wide = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    wide.generation_config = model.generation_config
    state = model.state_dict()
    for name, weight in state.items():
        if "_proj" in name and "self_attn" in name:
            rows = weight.T if "o_proj" in name else weight
            halves = rows.unflatten(0, (heads, 2, OLD // 2)) * ((NEW / OLD) ** 0.5 if "q_proj" in name else 1.0)
            rows = torch.nn.functional.pad(halves, (0, 0, 0, (NEW - OLD) // 2)).flatten(0, 2)
            state[name] = rows.T.contiguous() if "o_proj" in name else rows
    wide.load_state_dict(state)
    ids = torch.arange(35)[None]
    with torch.no_grad():
        torch.testing.assert_close(wide.eval()(ids).logits, model.eval()(ids).logits, atol=1e-4, rtol=1e-4)
    wide.save_pretrained(folder)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder)


if __name__ == "__main__":
    widen(Path(sys.argv[1]))
