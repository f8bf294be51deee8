"""A pool: every sample of one model on one task under one sampling configuration, a folder on disk."""
