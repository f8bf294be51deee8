"""Print a script that completes commands, flags, task names and recipes in bash or zsh.

The script is static: pressing Tab starts no Python. Write it again after an upgrade.

examples:
    mkdir -p ~/.local/share/bash-completion/completions
    offleash completion > ~/.local/share/bash-completion/completions/offleash

  For zsh, write it to a file and read that in ~/.zshrc:
    offleash completion > ~/.offleash-completion
    autoload -U compinit bashcompinit && compinit && bashcompinit && source ~/.offleash-completion
"""

import contextlib
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module

from offleash.eval.console import say
from offleash.eval.flags import command_parser
from offleash.eval.tasks import TASKS
from offleash.eval.yaml_file import read_yaml_mapping
from offleash.recipes import EMBEDDED
from offleash.train.commands.train import LAUNCHER
from offleash.train.recipe.catalogue import find_recipe, shipped_names

_FLAG = re.compile(r"^  (?:-\w, )?(--[\w-]+)", re.MULTILINE)
_SCRIPT = """\
# Completion of `offleash` for bash; zsh reads it after bashcompinit. Made by `offleash completion`.
_offleash() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=%(commands)s
    elif [[ $word == -* ]]; then
        case ${COMP_WORDS[1]} in
%(flags)s
        esac
    else
        case $before in
%(values)s
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _offleash offleash
"""


def main(argv: list[str]) -> int:
    command_parser("completion", __doc__).parse_args(argv)
    from offleash.train.cli import COMMANDS

    say(completion_script({name: _flags(name, module) for name, (module, _) in COMMANDS.items()}).rstrip("\n"))
    return 0


def completion_script(flags: Mapping[str, Sequence[str]]) -> str:
    """The script for these commands and their flags. What a flag takes is completed by the flag's name."""
    recipes, tasks = shipped_names(), list(TASKS)
    values = {"--task": tasks, "tasks": tasks, "--config|init|recipes|check": recipes, "--model": list(EMBEDDED)}
    return _SCRIPT % {
        "values": "\n".join(f"            {words}) words={_quoted(found)} ;;" for words, found in values.items()),
        "commands": _quoted(list(flags)),
        "flags": "\n".join(f"            {name}) words={_quoted(found)} ;;" for name, found in flags.items()),
    }


def _quoted(words: Sequence[str]) -> str:
    return shlex.quote(" ".join(words))


def _flags(name: str, module: str) -> list[str]:
    """The flags in a command's help; those of training are the launcher's and the keys of the lab's recipe."""
    if name == "train":
        keys = read_yaml_mapping(find_recipe("lab"), "a recipe")
        return ["--config", "--resume", *LAUNCHER, *(f"--{key}" for key in keys)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        import_module(module).main(["--help"])
    return _FLAG.findall(said.getvalue())
