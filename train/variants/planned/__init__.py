"""A sweep with a plan, judged on exact probabilities: exact -> verdicts (by twoway) -> figures, tables -> report.

`inertness` tests the prediction of `recipes/variants/PREDICTIONS.md`.
"""
