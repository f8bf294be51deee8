"""Is this completion correct, and what did it answer. Model output is hostile input.

Read in this order: `extract` (where the answer is), `answers` on `expressions` and `normalise` (what it says),
`mathematics` (the verdict), `workers` and `sandbox` (how dangerous verdicts are computed), `programs`, `judge`;
`golds` before a run and `failures` during it.
"""
