"""A run to look through: which units were hit at which step, and what base and policy wrote."""
