"""Variants that act on whole rollouts: their rewards or advantages."""
