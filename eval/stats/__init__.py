"""Numbers only: estimators, their intervals and their noise. Needs numpy and scipy, nothing else of the package."""
