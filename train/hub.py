"""A push to the hub uploads a model and its card; the run's folder also holds every sample of held-out problems."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi
from transformers import TrainingArguments

from offleash.eval.errors import OffleashError
from offleash.train.model_card import copy_card

STAGE = "hub"
"""The folder in the run's that a push in the middle of the training uploads."""


def repo_name(training: TrainingArguments) -> str:
    return training.hub_model_id or Path(training.output_dir).absolute().name


@contextmanager
def model_only(training: TrainingArguments) -> Iterator[None]:
    """The Trainer (transformers 5.17) copies a checkpoint's model into `output_dir` and uploads that: not the run's."""
    folder = Path(training.output_dir)
    stage = folder / STAGE
    stage.mkdir(exist_ok=True)
    copy_card(folder, stage)
    training.output_dir = str(stage)
    try:
        yield
    finally:
        training.output_dir = str(folder)


def push_final(training: TrainingArguments, final: Path) -> None:
    """Upload what the folder of the final model holds."""
    name, hub = repo_name(training), HfApi(token=training.hub_token)
    try:
        hub.upload_folder(
            repo_id=hub.create_repo(name, private=training.hub_private_repo, exist_ok=True).repo_id,
            folder_path=final,
            commit_message="End of training",
            revision=training.hub_revision,
        )
    except Exception as error:  # of any kind: the other processes wait to hear of it
        reason = " ".join(str(error).split())
        raise OffleashError(
            f"{final} is whole, but was not pushed to {name} ({reason}): try `hf upload {name} {final}`"
        ) from error
