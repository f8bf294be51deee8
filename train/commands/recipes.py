"""List the recipes and overlays that ship with Offleash, or print one.

A recipe is what `offleash train --config` takes; an overlay (variants/...) goes on top of a recipe. The name is enough:
no file has to be copied. `offleash init` copies one out, to be changed.

examples:
    offleash recipes                         every name: what it does, on what hardware, the command
    offleash recipes models                  only names that contain this text
    offleash recipes lab                     the file itself
"""

from offleash.eval.console import say
from offleash.eval.flags import command_parser
from offleash.train.recipe.catalogue import Shipped, find_shipped, shipped_recipes


def main(argv: list[str]) -> int:
    parser = command_parser("recipes", __doc__)
    parser.add_argument("name", nargs="?", default="", help="the recipe to print, or a part of the names to list")
    name = parser.parse_args(argv).name
    found = [recipe for recipe in shipped_recipes() if name in recipe.name]
    if not found or any(name == recipe.name for recipe in found):
        say(find_shipped(name).read_text(encoding="utf-8").rstrip("\n"))
    else:
        say("\n\n".join(map(_described, found)))
    return 0


def _described(recipe: Shipped) -> str:
    hardware = [f"    hardware: {recipe.hardware}"] if recipe.hardware else []
    return "\n".join([recipe.name, f"    {recipe.summary}", *hardware, f"    {recipe.command}"])
