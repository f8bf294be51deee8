"""KL-optimal reweighting of the base at a policy's pass@1: the reference for every claim about support."""
