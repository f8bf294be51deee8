"""Pools: every sample of one model on one task with one sampling configuration, in a folder on disk."""
