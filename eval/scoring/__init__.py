"""Log-probability and token entropy of given text under a model."""
