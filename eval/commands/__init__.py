"""One file per `offleash` subcommand: `main(words) -> exit status`, and a docstring whose first line is its summary."""
