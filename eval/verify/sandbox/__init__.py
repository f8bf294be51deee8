"""Model-written code and slow checkers, run where they can do no harm and cannot hang anything."""
