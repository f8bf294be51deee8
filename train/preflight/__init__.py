"""Checks before training starts: the recipe, the launch, the model and the data, the installation."""
