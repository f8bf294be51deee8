"""Copy a recipe that ships with Offleash into a file of your own, to be changed.

An existing file is never overwritten. `offleash recipes` lists the names.

examples:
    offleash init lab                        writes lab.yaml here
    offleash init models/qwen2.5-0.5b-gsm8k mine.yaml
    offleash check mine.yaml --gpu 4090 && offleash train --config mine.yaml
"""

from pathlib import Path

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser
from offleash.train.recipe.catalogue import find_shipped


def main(argv: list[str]) -> int:
    parser = command_parser("init", __doc__)
    parser.add_argument("name", help="a name that `offleash recipes` lists")
    parser.add_argument("file", nargs="?", type=Path, help="file to write (default: the recipe's own name, here)")
    options = parser.parse_args(argv)
    shipped = find_shipped(options.name)
    path = options.file or Path(shipped.name)
    try:
        with path.open("xb") as file:
            file.write(shipped.read_bytes())
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already: give another file name, or remove it") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    say(f"wrote {path}: change it, then `offleash check {path}` and `offleash train --config {path}`")
    return 0
