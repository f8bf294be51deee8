"""One process of a training run: `accelerate launch -m offleash.train --config recipes/lab.yaml`."""

import sys


def main() -> int:
    from offleash.eval.console import say
    from offleash.eval.errors import OffleashError
    from offleash.train.grpo import train
    from offleash.train.preflight.installation import report_old_locks
    from offleash.train.recipe.config import parse_recipe

    report_old_locks()
    try:
        train(parse_recipe(sys.argv[1:]))
    except OffleashError as error:
        say(f"offleash: error: {error}", error=True)
        return 2
    except KeyboardInterrupt:
        say("offleash: interrupted; add --resume to continue from the last checkpoint", error=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
