"""Problems -> samples -> verdicts -> numbers. Knows nothing of training.

Nothing is imported here: `offleash.eval.stats.support`, `noise`, `passk` and `entropy` need numpy only.
"""
