"""The policy and its frozen base inside a trainer: everything that reaches into TRL is here."""
