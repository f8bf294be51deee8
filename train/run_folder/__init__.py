"""The folder of a run: its checkpoints and settings, and how a run is resumed."""
