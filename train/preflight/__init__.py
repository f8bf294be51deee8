"""What training would not survive, said before it starts."""
