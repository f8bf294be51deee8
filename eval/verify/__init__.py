"""Is this completion correct, and what did it answer. Model output is hostile input.

Read in this order: `verdicts` (what every batch goes through), `extract` (where the answer is), `math_answers` (what it
says and whether it equals the gold), `sandbox` (how dangerous verdicts are computed), `judge`; `health` checks golds
before a run and failures during it.
"""
