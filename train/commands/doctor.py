"""Check the installation: versions, conflicts between packages, and how to fix them.

Prints one line per finding and changes nothing. Exits with status 1 if something is broken.

examples:
    offleash doctor
    offleash doctor && offleash train --config lab
"""

from offleash.eval.console import say
from offleash.eval.flags import command_parser
from offleash.train.preflight.installation import installation_findings


def main(argv: list[str]) -> int:
    command_parser("doctor", __doc__).parse_args(argv)
    found = installation_findings()
    for finding in found:
        say(f"{finding.level:7} {finding.text}")
    return 1 if any(finding.level == "BROKEN" for finding in found) else 0
