"""Measuring a run from its folder: checkpoints of any trainer, in processes of their own."""
