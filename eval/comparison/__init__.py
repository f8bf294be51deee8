"""Two pools or more against each other: what was lost and gained, how sure that is, and examples of it."""
