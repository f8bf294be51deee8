"""The table of explorers by name; your own is given by its dotted path, `my_module:MyExplorer`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offleash.eval.errors import ConfigError
from offleash.eval.registry import build, find, fit_arguments

if TYPE_CHECKING:
    from trl import GRPOConfig

    from offleash.train.explorers.base import Explorer

EXPLORERS: dict[str, str] = {
    name: f"offleash.train.explorers.{module}"
    for name, module in {
        "identity": "base:Explorer",
        "pass_at_k": "advantages.pass_at_k:PassAtK",
        "pkpo": "advantages.pkpo:Pkpo",
        "focal": "advantages.focal:Focal",
        "maxrl": "advantages.maxrl:MaxRl",
        "xdr_grpo": "advantages.xdr_grpo:XdrGrpo",
        "tilt": "advantages.tilt:Tilt",
        "outcome_batch": "advantages.outcome_batch:OutcomeBatch",
        "outcome_ucb": "advantages.outcome_ucb:OutcomeUcb",
        "w_reinforce": "advantages.w_reinforce:WReinforce",
        "unlikeliness": "advantages.unlikeliness:Unlikeliness",
        "ucpo": "advantages.ucpo:Ucpo",
        "clip_cov": "loss.covariance:ClipCov",
        "kl_cov": "loss.covariance:KlCov",
        "entropy_advantage": "loss.entropy_advantage:EntropyAdvantage",
        "sage": "loss.sage:Sage",
        "dynamic_sampling": "samples.dynamic_sampling:DynamicSampling",
        "reference_reset": "loss.reference_reset:ReferenceReset",
        "anchor": "samples.anchor:Anchor",
        "rehearsal": "samples.rehearsal:Rehearsal",
        "mode_replay": "samples.mode_replay:ModeReplay",
        "seeding": "samples.seeding:Seeding",
        "placebo": "advantages.placebo:Placebo",
    }.items()
}


def find_explorer(name: str) -> Any:
    """The class with that name or dotted path."""
    return find("explorer", name, EXPLORERS, ("attach", "prepare", "collect", "advantages", "extra_loss"))


def fit_explorer_arguments(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert numbers that YAML read as text; raise ConfigError for a value of the wrong type."""
    return fit_arguments("explorer", name, find_explorer(name), arguments)


def load_explorers(chosen: Mapping[str, Mapping[str, Any]], training: "GRPOConfig | None" = None) -> "list[Explorer]":
    """Build the explorers from names and arguments, in the order in which they act.

    With the settings of the run, those of the user's own are tried on rollouts made by hand.
    """
    from offleash.train.explorers.checks import check_chain  # torch, which the table of names does without

    if training is not None and (own := {name: given for name, given in chosen.items() if name not in EXPLORERS}):
        from offleash.train.explorers.trial import try_explorer

        for name, arguments in own.items():
            try_explorer(name, _load(name, arguments), training)
    explorers = [_load(name, arguments) for name, arguments in chosen.items()]
    check_chain(explorers)
    return explorers


def _load(name: str, arguments: Mapping[str, Any]) -> "Explorer":
    from offleash.train.explorers.base import Explorer

    explorer = build("explorer", name, find_explorer(name), **fit_explorer_arguments(name, arguments))
    if not isinstance(explorer, Explorer):
        raise ConfigError(
            f"explorer {name!r} is a {type(explorer).__name__}: it must be a subclass of offleash.train.Explorer"
        )
    return explorer
