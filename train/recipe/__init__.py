"""A recipe: one flat YAML and flags, resolved and checked."""
