"""`python -m offleash` is the `offleash` command."""

import sys

from offleash.train.cli import main

if __name__ == "__main__":
    sys.exit(main())
