"""Variants that act on what is trained on: which groups, and samples besides the rollouts."""
