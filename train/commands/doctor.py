"""offleash doctor: check the installation: versions, conflicts between packages, and how to fix them.

Prints one line per finding and changes nothing. Exits with status 1 if something is broken.
"""

import argparse

from offleash.eval.console import say
from offleash.train.preflight.installation import installation_findings


def main(argv: list[str]) -> int:
    description = (__doc__ or "").partition(": ")[2]
    argparse.ArgumentParser(prog="offleash doctor", description=description).parse_args(argv)
    found = installation_findings()
    for finding in found:
        say(f"{finding.level:7} {finding.text}")
    return 1 if any(finding.level == "BROKEN" for finding in found) else 0
