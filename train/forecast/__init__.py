"""Memory, hours and money, estimated before anything runs."""
