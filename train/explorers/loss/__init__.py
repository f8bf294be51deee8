"""Variants that act inside the loss: on tokens, or on the KL reference."""
