"""One file per `offleash` subcommand: `main(argv) -> exit status`, and a docstring whose first line is its summary."""
