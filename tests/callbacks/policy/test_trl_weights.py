"""What vLLM is given has the names and the values of a plain checkpoint, whatever is wrapped around the model.

And the base of an adapter keeps every bit, which it does not when TRL merges and unmerges.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from trl.distributed import DistributedBackend
from trl.generation.vllm_generation import VLLMGeneration

from offleash.callbacks import SupportCallback
from offleash.callbacks.policy import trl_seam
from offleash.callbacks.policy.sampler import isolated_rng
from offleash.callbacks.policy.trl_weights import engine_name, engine_weights, has_adapter_off, reshard
from offleash.callbacks.policy.weight_hash import hash_weights, moved_weights
from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task

peft = pytest.importorskip("peft")

TARGETS = ["q_proj", "v_proj", "down_proj"]


def generation_of(model: Any, zero_stage: int = 0, fsdp_version: int | None = None) -> Any:
    """TRL's VLLMGeneration without an engine."""
    plugins = {"deepspeed_plugin": SimpleNamespace(zero_stage=zero_stage) if zero_stage else None}
    plugins["fsdp_plugin"] = SimpleNamespace(fsdp_version=fsdp_version) if fsdp_version else None
    made = VLLMGeneration.__new__(VLLMGeneration)
    made.model, made.mode, made.tensor_parallel_size = model, "colocate", 1
    made.accelerator = SimpleNamespace(device=torch.device("cpu"), state=SimpleNamespace(**plugins))
    made._dist = DistributedBackend(made.accelerator)
    return made


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "s"), 1), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_what_fsdp_2_left_whole_after_a_forward_pass_is_served_and_hashed_as_a_part(one_process: None) -> None:
    """As Accelerate shards the last layers; the policy is scored between two syncs, without a backward pass."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    plain = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    torch.distributed.fsdp.fully_shard(model, reshard_after_forward=False)
    before = hash_weights(model.named_parameters())
    with torch.no_grad():
        model(torch.ones(1, 4))
    assert not hasattr(model[1].weight, "full_tensor")
    found = served(model, fsdp_version=2)
    assert all(torch.equal(found[name], weight) for name, weight in plain.items())
    with torch.no_grad():
        model(torch.ones(1, 4))
    reshard(model)
    assert isinstance(model[1].weight, torch.distributed.tensor.DTensor)
    assert moved_weights(before, hash_weights(model.named_parameters())) == []


def served(model: Any, **sharding: Any) -> dict[str, torch.Tensor]:
    """What an engine would be left with: a copy of each weight at the moment it is handed over."""
    pairs = [(name, weight.detach().clone()) for name, weight in engine_weights(generation_of(model, **sharding))]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def adapted(model: Any, **settings: Any) -> Any:
    """With a LoRA adapter that does something."""
    settings = {"r": 4, "target_modules": TARGETS, "init_lora_weights": False, **settings}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(**settings), autocast_adapter_dtype=False)


@pytest.fixture(scope="module")
def model(lab_model: Any) -> Any:
    return copy.deepcopy(lab_model[0]).to(torch.bfloat16)


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("module.model.norm.weight", "model.norm.weight"),
        ("module.module.model.norm.weight", "model.norm.weight"),
        ("_orig_mod.module.lm_head.weight", "lm_head.weight"),
        ("module._orig_mod.lm_head.weight", "lm_head.weight"),
        ("_fsdp_wrapped_module.model.layers.1._fsdp_wrapped_module.mlp.weight", "model.layers.1.mlp.weight"),
        ("model.layers.1._checkpoint_wrapped_module._orig_mod.mlp.weight", "model.layers.1.mlp.weight"),
        ("model.vision.module.weight", "model.vision.module.weight"),
    ],
)
def test_what_wrappers_add_to_a_name_is_removed_and_nothing_else(wrapped: str, plain: str) -> None:
    assert engine_name(wrapped) == plain


def test_merging_and_unmerging_in_bfloat16_moves_the_base_with_plain_peft_and_not_with_ours(model: Any) -> None:
    policy = adapted(model)
    frozen = [(name, weight) for name, weight in policy.named_parameters() if not weight.requires_grad]
    before = hash_weights(frozen)
    for _ in range(3):
        served(policy)
    assert moved_weights(before, hash_weights(frozen)) == []
    for _ in range(3):
        policy.merge_adapter()
        policy.unmerge_adapter()
    moved = moved_weights(before, hash_weights(frozen))
    assert len(moved) == len(TARGETS) * model.config.num_hidden_layers


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"use_rslora": True}])
def test_an_adapter_is_served_as_trl_would_merge_it_under_the_names_of_the_plain_model(
    model: Any, settings: dict[str, Any]
) -> None:
    policy = adapted(model, **settings)
    ours = dict(engine_weights(generation_of(policy)))  # all held at once, as the client of a server does
    theirs = {
        name: weight.clone() for name, weight in VLLMGeneration._iter_named_params(generation_of(copy.deepcopy(policy)))
    }
    assert same(ours, theirs)
    assert set(ours) - {name for name, _ in model.named_parameters()} <= {"lm_head.weight"}
    assert not same(ours, dict(model.named_parameters()))


def test_without_its_adapter_an_adapted_model_is_served_as_the_base(model: Any) -> None:
    policy = adapted(model)
    assert not has_adapter_off(policy)
    with policy.disable_adapter():
        assert has_adapter_off(policy)
        assert same(served(policy), dict(model.named_parameters()))
    saving = adapted(model, modules_to_save=["norm"])
    saving.base_model.model.model.norm.modules_to_save["default"].weight.data += 1
    assert not torch.equal(served(saving)["model.norm.weight"], model.model.norm.weight)
    with saving.disable_adapter():
        assert same(served(saving), dict(model.named_parameters()))


def test_a_copy_that_breaks_off_leaves_the_base_as_it_was(model: Any) -> None:
    policy = adapted(model)
    before = hash_weights(policy.named_parameters())
    walk = engine_weights(generation_of(policy))
    for _ in range(3):
        next(walk)
    walk.close()
    assert hash_weights(policy.named_parameters()) == before
    assert not any(getattr(module, "merged", False) for module in policy.modules())


def test_an_adapter_that_is_no_change_of_weights_is_refused(model: Any) -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    prompted = peft.get_peft_model(copy.deepcopy(model), config)
    with pytest.raises(ConfigError, match="PROMPT_TUNING"):
        served(prompted)


def test_an_adapter_on_a_head_that_is_the_embedding_too_is_refused(model: Any) -> None:
    assert model.config.tie_word_embeddings
    with pytest.raises(ConfigError, match="shares its weights"):
        served(adapted(model, target_modules=["q_proj", "lm_head"]))


def test_a_monitor_on_a_stock_trainer_takes_the_sync_over_and_the_base_is_served_wrapped_or_not(
    make_trainer: Any, model: Any
) -> None:
    trainer = make_trainer()
    policy = adapted(model)
    trainer.use_vllm, trainer.vllm_generation = True, generation_of(policy)
    SupportCallback(trainer, load_task("countdown", split="probe", n=2), k=2)
    generation, before = trainer.vllm_generation, hash_weights(policy.named_parameters())
    for _ in range(2):
        assert {name for name, _ in generation._iter_named_params()} == {name for name, _ in model.named_parameters()}
    assert hash_weights(policy.named_parameters()) == before
    reference = torch.nn.Module()  # as DeepSpeed wraps it
    reference.module = trainer.ref_model
    with trl_seam.generating_with(trainer, reference):
        assert trainer._last_loaded_step == -1
        assert same(dict(generation._iter_named_params()), dict(trainer.ref_model.named_parameters()))
        assert generation.model is reference
    assert generation.model is trainer.model


def test_processes_of_one_engine_share_their_random_numbers(stand_in_trainer: Any) -> None:
    def groups(use_vllm: bool, mode: str, size: int) -> list[int]:
        generation = SimpleNamespace(mode=mode, tensor_parallel_size=size)
        ranks = [SimpleNamespace(process_index=rank) for rank in range(4)]
        made = [stand_in_trainer(use_vllm=use_vllm, vllm_generation=generation, accelerator=rank) for rank in ranks]
        return [trl_seam.sampling_group(trainer) for trainer in made]

    assert groups(True, "colocate", 2) == [0, 0, 1, 1]
    assert groups(True, "colocate", 4) == [0, 0, 0, 0]
    assert groups(True, "colocate", 1) == [0, 1, 2, 3]
    assert groups(True, "server", 2) == [0, 1, 2, 3]  # the server's own setting is what counts
    assert groups(False, "colocate", 2) == [0, 1, 2, 3]


def test_the_rollouts_of_a_colocated_engine_depend_on_the_runs_seed_and_on_the_engine(stand_in_trainer: Any) -> None:
    def state(seed: int, rank: int, mode: str = "colocate", size: int = 1) -> float:
        torch.manual_seed(7)  # what vLLM leaves behind when it has started, whatever the run's seed
        trainer = stand_in_trainer(
            use_vllm=True,
            vllm_generation=SimpleNamespace(mode=mode, tensor_parallel_size=size),
            accelerator=SimpleNamespace(process_index=rank),
        )
        trl_seam.seed_rollouts(trainer, seed)
        return float(torch.rand(1))

    with isolated_rng():
        assert len({state(seed, rank) for seed in range(3) for rank in range(3)}) == 9
        assert state(1, 2, size=2) == state(1, 3, size=2)
        assert state(0, 0, "server") == state(1, 1, "server")


# Sharded models, in two processes of their own: a process group stays in a process for good


PROCESSES = 2
WRAPPINGS = ("plain", "ddp", "zero2", "zero3", "fsdp2")
OWN_PROCESS = "OFFLEASH_TEST_WRAPPINGS"


def wrap(model: Any, wrapping: str, trained: bool) -> Any:
    """As the trainer holds a policy, or a frozen reference."""
    if wrapping == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model) if trained else model
    if wrapping == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (PROCESSES,))
        for layer in (module for name, module in model.named_modules() if name.split(".")[-2:-1] == ["layers"]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if wrapping.startswith("zero"):
        import deepspeed

        stage = int(wrapping[-1]) if trained or wrapping == "zero3" else 0  # as TRL's prepare_deepspeed
        zero = {"zero_optimization": {"stage": stage}, "train_batch_size": PROCESSES}
        zero["zero_allow_untested_optimizer"] = True
        trainable = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=0.1) if trained else None
        return deepspeed.initialize(model=model, config={**zero, "bf16": {"enabled": True}}, optimizer=optimizer)[0]
    return model


def cases(model: Any) -> Iterator[tuple[str, bool]]:
    plain = dict(model.named_parameters())
    for wrapping in WRAPPINGS:
        sharding = {"zero_stage": int(wrapping[-1]) if "zero" in wrapping else 0}
        sharding["fsdp_version"] = 2 if wrapping == "fsdp2" else None
        # At the start the base is drawn from the policy; on a resume from a reference, or the policy without adapter.
        policy, reference = (wrap(copy.deepcopy(model), wrapping, trained) for trained in (True, False))
        yield f"{wrapping} policy", same(served(policy, **sharding), plain)
        yield f"{wrapping} base", same(served(reference, **sharding), plain)
        lora = adapted(model)
        wanted = served(lora)
        wrapped = wrap(lora, wrapping, True)
        before = hash_weights(wrapped.named_parameters())
        yield f"{wrapping} lora policy", same(served(wrapped, **sharding), wanted)
        with lora.disable_adapter():
            yield f"{wrapping} lora base", same(served(wrapped, **sharding), plain)
        yield f"{wrapping} lora policy again", same(served(wrapped, **sharding), wanted)
        yield f"{wrapping} lora unmoved", hash_weights(wrapped.named_parameters()) == before


def same_draws() -> Iterator[tuple[str, bool]]:
    """Of processes of one engine whose random states are apart, as vLLM's samplers draw: by torch, and by numpy."""
    rank = torch.distributed.get_rank()
    np.random.seed(rank)
    torch.manual_seed(rank)

    class Engine:
        def generate(self) -> list[float]:
            return [float(torch.rand(1)), float(np.random.rand())]

    group = torch.distributed.new_group()
    generation = SimpleNamespace(mode="colocate", tensor_parallel_size=PROCESSES, tp_group=group, llm=Engine())
    trl_seam.draw_as_one(cast(Any, SimpleNamespace(use_vllm=True, vllm_generation=generation)))
    before = [float(np.random.rand()), float(torch.rand(1))]
    found: list[Any] = [None] * PROCESSES
    torch.distributed.all_gather_object(found, (before, generation.llm.generate()))
    yield "states apart", found[0][0] != found[1][0]
    yield "draws as one", found[0][1] == found[1][1]
    ahead = np.random.RandomState(rank)
    ahead.rand(2 - bool(rank))  # the first process's own draws go on behind the engine's
    yield "own state afterwards", float(np.random.rand()) == float(ahead.rand())


@pytest.mark.slow
def test_every_wrapping_serves_policy_and_base_as_the_plain_model(request: Any, tmp_path: Path) -> None:
    nodeid = f"{Path(__file__).relative_to(request.config.rootpath)}::test_wrappings_in_their_own_processes"
    line = [sys.executable, "-m", "pytest", "-q", "-m", "slow", nodeid]
    shared = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    shared |= {"DS_ACCELERATOR": "cpu", OWN_PROCESS: str(tmp_path)}
    processes = []
    for rank in map(str, range(PROCESSES)):
        env = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
        with (tmp_path / f"log-{rank}").open("w") as log:
            folder = request.config.rootpath
            processes.append(subprocess.Popen(line, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT))
    for rank, process in enumerate(processes):
        assert process.wait(timeout=900) == 0, (tmp_path / f"log-{rank}").read_text()[-6000:]
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert len(found) == 6 * len(WRAPPINGS) + 3
        assert [name for name, is_same in found.items() if not is_same] == []


@pytest.mark.slow
@pytest.mark.skipif(OWN_PROCESS not in os.environ, reason="the test above runs it")
def test_wrappings_in_their_own_processes(model: Any) -> None:
    folder, rank = Path(os.environ[OWN_PROCESS]), int(os.environ["RANK"])
    store = torch.distributed.FileStore(str(folder / "store"), PROCESSES)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    (folder / f"found-{rank}").write_text(json.dumps(dict([*cases(model), *same_draws()])))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
