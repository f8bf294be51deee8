"""Look at runs: TensorBoard, opened at the tab "Support".

The tab shows the verdict on each step in a sentence, what was lost and gained against noise, a map of all answers over
the steps, and for each cell what base and policy wrote. With --html it is written as a file that needs no server and no
network; a folder (DIR/) holds the completions of every cell.

examples:
    offleash view runs/lab                          one run
    offleash view runs/plain runs/focal             several, overlaid
    offleash view runs/lab --html lab.html          the tab as one file, to share
"""

import time
from pathlib import Path
from urllib.parse import urlsplit

from offleash.eval.console import say
from offleash.eval.flags import command_parser


def main(argv: list[str]) -> int:
    parser = command_parser("view", __doc__)
    parser.add_argument("run", nargs="+", type=Path, metavar="RUN", help="the folder of a monitored run")
    parser.add_argument("--port", type=int, default=6006, help="0: any that is free (default: 6006)")
    parser.add_argument("--host", default="localhost", help="where to listen (default: localhost)")
    parser.add_argument(
        "--html", metavar="FILE", help="write one file that needs nothing else; DIR/ is a folder with all completions"
    )
    options = parser.parse_args(argv)
    from offleash.callbacks.tab.serve import check_runs, start, tunnel

    runs = check_runs(options.run)
    if options.html is not None:
        from offleash.callbacks.tab.export import write_html

        say(write_html(runs, options.html))
        return 0
    address = start(runs, options.host, options.port)
    say(f"offleash: {address}\nOn another machine:  {tunnel(urlsplit(address).port or 0)}\nCtrl-C ends it.")
    while True:
        time.sleep(3600)
