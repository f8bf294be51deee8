"""What many tests need: the embedded model, small real GRPO runs in this process, event files read back."""

import dataclasses
import inspect
import os
import runpy
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines announce AMX and die of it
os.environ["COLUMNS"] = "118"  # tables are wrapped to the terminal
# TRL imports trackio where it is installed, and that reads where to write: not into the user's own runs.
os.environ["TRACKIO_DIR"] = os.path.join(tempfile.gettempdir(), f"offleash-trackio-{os.getpid()}")  # noqa: PTH118

import hypothesis
import pytest

from offleash import recipes

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would our runs

# The same examples on every machine and worker: a failure is the change's, never the day's.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("steady")

LAB_BASE = Path(recipes.__path__[0]) / "lab" / "base"


TOGETHER = {
    *("tests/eval/scoring/test_exact.py", "tests/eval/engines/test_transformers_engine.py", "tests/test_packaging.py"),
    *("tests/train/test_distributed.py", "tests/train/test_resume.py", "tests/train/variants/test_sweep.py"),
    *(f"tests/eval/verify/sandbox/test_{name}.py" for name in ("confine", "programs", "workers")),
    "tests/eval/verify/math_answers/test_torture.py",
}
"""Files with expensive fixtures, or that look for processes left behind: each stays on one worker; they start first."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):  # which starts with the largest scope
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return file if file in TOGETHER else nodeid

    return FilesTogether(config, log)


@pytest.fixture(scope="session")
def lab_base() -> Path:
    return LAB_BASE


@pytest.fixture(scope="session")
def lab_model() -> tuple[Any, Any]:
    """The embedded model in float32, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(LAB_BASE, dtype="float32").eval()
    return model, AutoTokenizer.from_pretrained(LAB_BASE)


@pytest.fixture(scope="session")
def vllm_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with heads that vLLM's kernels for CPUs know."""
    folder = tmp_path_factory.mktemp("vllm") / "base"
    runpy.run_path(str(LAB_BASE.parent / "widen.py"))["widen"](folder)
    return folder


@pytest.fixture
def make_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A trl.GRPOTrainer on countdown: 8 problems x 4 rollouts, a few steps, TensorBoard in its own folder.

    Plain, or with explorers if a list of them is given.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from offleash.eval.tasks import load_task
    from offleash.train.rewards import VerifierReward
    from offleash.train.trainer import ExploringTrainer

    def make(name: str = "run", explorers: list[Any] | None = None, model: Path = LAB_BASE, **overrides: Any) -> Any:
        folder = tmp_path / name
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
        settings: dict[str, Any] = {
            "output_dir": str(folder),
            "max_steps": 4,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "beta": 0.01,
            "num_generations": 4,
            "per_device_train_batch_size": 32,
            "max_completion_length": 20,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "tensorboard",
            "bf16": False,
            "gradient_checkpointing": False,
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 3,
        }
        task = load_task("countdown", split="train", n=64)
        reward = VerifierReward(task, end_token_ids=[0, 1, 2])
        plain = partial(GRPOTrainer, reward_funcs=[reward])
        explored = partial(ExploringTrainer, reward=reward, explorers=explorers or ())
        trainer = (plain if explorers is None else explored)(
            model=str(model),
            args=GRPOConfig(**{**settings, **overrides}),
            train_dataset=Dataset.from_list([{"prompt": p.prompt, "problem_id": p.id} for p in task.problems]),
        )
        reward.end_token_ids = frozenset([*trainer.eos_token_ids, trainer._tokenizer.pad_token_id])
        return trainer

    return make


@pytest.fixture(scope="session")
def names_of() -> Callable[[type], set[str]]:
    """The attributes and methods that a Protocol asks for, those it inherits included."""

    def names(protocol: type) -> set[str]:
        kinds = [kind for kind in protocol.__mro__ if kind.__module__.startswith("offleash.")]
        methods = {name for kind in kinds for name, value in vars(kind).items() if inspect.isfunction(value)}
        annotated = {name for kind in kinds for name in vars(kind).get("__annotations__", {})}
        return {name for name in methods | annotated if not name.startswith("__")} - {"_no_init_or_replace_init"}

    return names


@pytest.fixture(scope="session")
def stand_in_trainer(names_of: Callable[[type], set[str]]) -> Callable[..., Any]:
    """A trainer of the given attributes and `args`, for what needs no model.

    Only names that the product may use: a test compares these with a real trainer, so that no stand-in outlives a name.
    """
    from trl import GRPOConfig

    from offleash.callbacks.policy.trl_seam import VllmInternals
    from offleash.train.explorers.base import ExplorerTrainer

    known = names_of(ExplorerTrainer) | names_of(VllmInternals)
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}

    def make(args: dict[str, Any] | None = None, **attributes: Any) -> Any:
        assert set(attributes) <= known
        assert set(args or {}) <= fields
        return SimpleNamespace(args=SimpleNamespace(**(args or {})), **attributes)

    return make


@pytest.fixture(scope="session")
def read_scalars() -> Callable[[Path], dict[str, list[tuple[int, float]]]]:
    """Every scalar record in the event files below a folder, unpurged: what any reader could see."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
        found = defaultdict(list)
        for path in sorted(folder.rglob("events.out.tfevents.*")):
            for event in EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    array = make_ndarray(value.tensor)
                    if array.dtype.kind == "f":
                        found[value.tag].append((event.step, float(array)))
        return {tag: sorted(points) for tag, points in found.items()}

    return read


@pytest.fixture(scope="session")
def read_tags() -> Callable[[Path], dict[str, list[int]]]:
    """Every tag in the event files below a folder, scalar or not, with its steps."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    def read(folder: Path) -> dict[str, list[int]]:
        found = defaultdict(list)
        for path in sorted(folder.rglob("events.out.tfevents.*")):
            for event in EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    found[value.tag].append(event.step)
        return dict(found)

    return read


@pytest.fixture(scope="session")
def trajectory() -> Callable[[Any], list[dict[str, float]]]:
    """What a run logged step by step, without what depends on the clock."""

    def of(trainer_or_history: Any) -> list[dict[str, float]]:
        history = getattr(getattr(trainer_or_history, "state", None), "log_history", trainer_or_history)
        clock = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
        return [{k: v for k, v in row.items() if k not in clock} for row in history if "grad_norm" in row]

    return of


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama of random weights, a tokenizer of bytes and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    folder = tmp_path_factory.mktemp("chat_model")
    words = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(folder)
    set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), **sizes, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
