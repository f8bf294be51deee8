"""Prompts with images, in real runs of tiny vision-language models with random weights.

LLaVA loads as any model does. Qwen2.5-VL's processor asks for torchvision, which has no CPU build, though only for
videos: it is made by hand here, because its pixels come flat over all images of a batch.
"""

import base64
import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from datasets import Dataset
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoProcessor,
    AutoTokenizer,
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
)
from transformers.video_processing_utils import BaseVideoProcessor

from offleash.callbacks.policy import pool
from offleash.callbacks.policy.sampler import TrainerSampler, plan_rounds
from offleash.callbacks.weight_sync import scored_sequences
from offleash.eval.errors import ConfigError
from offleash.eval.fingerprint import template_fingerprint
from offleash.eval.images import has_images, picture_key, with_pictures, without_images
from offleash.eval.problem import Problem, Verdict
from offleash.eval.sampling import Sampling
from offleash.train.grpo import build_trainer, train
from offleash.train.preflight import images
from offleash.train.recipe.config import parse_recipe

SHADES = {"dark": (0, 40), "bright": (200, 255)}
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}IMAGE{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def shown(shade: int, width: int = 16, height: int = 16) -> str:
    sink = io.BytesIO()
    Image.new("RGB", (width, height), (shade, shade, shade)).save(sink, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(sink.getvalue()).decode()}"


def asked(url: str, text: str = "=") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


class Shades:
    """Dark or bright? Right is an answer that begins with a low digit, or a high one: the blind are right by half."""

    name, version = "shades", "1"
    rights: ClassVar = {"dark": "01234", "bright": "56789"}

    def __init__(
        self, split: str = "train", n: int = 16, odd: bool = False, mixed: bool = False, broken: bool = False
    ) -> None:
        start = {"train": 0, "probe": 1}[split]
        self.problems = []
        for i in range(n):
            name = ("dark", "bright")[i % 2]
            low, high = SHADES[name]
            shade = low + (2 * i + start) % (high - low)
            prompt = asked(shown(shade, *((16, 16), (40, 20), (20, 60))[i % 3]), "=" * (1 + i % 2))
            if odd and i == 3:  # two pictures, and a message of plain text before them
                prompt[0]["content"].insert(0, prompt[0]["content"][0])
                prompt.insert(0, {"role": "system", "content": "1 2"})
            if broken and not i:
                prompt = asked("data:image/png;base64,aGVsbG8=")
            self.problems.append(Problem(f"{split}-{i}", "=" if mixed and not i else prompt, name))

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
        firsts = [text.strip()[:1] for text in completions]
        return [
            Verdict(first, first != "" and first in self.rights[problem.gold], "ok", "first")
            for problem, first in zip(problems, firsts, strict=True)
        ]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]:
        return tuple(self.rights[problem.gold])


TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def tokenizer_with(lab_base: Path, *tokens: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(lab_base, padding_side="left", truncation_side="left")
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    return tokenizer


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory, lab_base: Path) -> Path:
    return make_llava(tmp_path_factory.mktemp("llava"), lab_base)


def make_llava(folder: Path, lab_base: Path) -> Path:
    tokenizer = tokenizer_with(lab_base, "<image>")
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    ).save_pretrained(folder)
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8, "projection_dim": 16}
    config = LlavaConfig(
        vision_config=vision,
        text_config={"model_type": "llama", "vocab_size": len(tokenizer), **TEXT},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        **{key: TEXT[key] for key in ("eos_token_id", "pad_token_id")},
    )
    torch.manual_seed(0)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    return folder


class NoVideo(BaseVideoProcessor):
    def __init__(self) -> None:
        pass


class ImageOnly(Qwen2_5_VLProcessor):
    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        return None

    def save_pretrained(self, folder: Any, **kwargs: Any) -> Any:
        return self.tokenizer.save_pretrained(folder)


@pytest.fixture
def qwen(tmp_path: Path, lab_base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "qwen"
    tokenizer = tokenizer_with(lab_base, "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad", "vision_start")}
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    config = Qwen2_5_VLConfig(
        vision_config={**vision, "fullatt_block_indexes": [1], "window_size": 56},
        text_config={
            "vocab_size": len(tokenizer),
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            **TEXT,
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        **{key: TEXT[key] for key in ("eos_token_id", "pad_token_id")},
    )
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = ImageOnly(
        image_processor=Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 8),
        tokenizer=tokenizer,
        video_processor=NoVideo(),
        chat_template=TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )
    monkeypatch.setattr(images.AutoProcessor, "from_pretrained", lambda *a, **k: processor)
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    def make(model: Path, name: str = "run", **values: Any) -> Any:
        settings = {
            "task": f"{__name__}:Shades",
            "train_args": {"split": "train"},
            "probe_args": {"split": "probe", "n": 6},
            "model_name_or_path": str(model),
            "output_dir": str(tmp_path / name),
            "max_steps": 3,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "beta": 0.01,
            "num_generations": 4,
            "per_device_train_batch_size": 16,
            "max_completion_length": 4,
            "monitor_every": 2,
            "monitor_k": 4,
            "monitor_score_k": 2,
            "monitor_batch_size": 12,
            "logging_steps": 1,
            "save_steps": 1,
            "report_to": "tensorboard",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            **values,
        }
        path = tmp_path / f"{name}.json"  # JSON is YAML
        path.write_text(json.dumps(settings))
        return parse_recipe(["--config", str(path)])

    return make


def logits_alone(trainer: Any, prompt: Any, ids: list[int]) -> torch.Tensor:
    """(T, V) what the model gives for each token of one completion of one prompt, without batch or padding."""
    inputs = trainer.processing_class.apply_chat_template(
        [with_pictures(prompt)], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    extra = {key: value for key, value in inputs.items() if key not in ("input_ids", "attention_mask")}
    if "mm_token_type_ids" in extra:
        extra["mm_token_type_ids"] = torch.nn.functional.pad(extra["mm_token_type_ids"], (0, len(ids)))
    whole = torch.cat([inputs["input_ids"], torch.tensor([ids])], 1)
    with torch.no_grad():
        logits = trainer.model.eval()(input_ids=whole, attention_mask=torch.ones_like(whole), **extra).logits
    return logits[0, -len(ids) - 1 : -1]


@pytest.mark.long
@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_the_monitor_draws_and_scores_as_the_model_does_alone(family, recipe, request, monkeypatch) -> None:
    trainer = build_trainer(recipe(request.getfixturevalue(family), per_device_train_batch_size=4))
    task = Shades("probe", 6, odd=True)
    greedy = Sampling(top_k=1, max_new_tokens=4)
    sampler = TrainerSampler(trainer, task.problems, greedy, kl_to_base=True)
    drawn, score = [], sampler._score
    monkeypatch.setattr(sampler, "_score", lambda local, base: (score(local, base), drawn.extend(local)))
    list(sampler.draw(plan_rounds(6, 2, 2, 8), seed=3))
    assert len(drawn) == 12
    moved = 0.0
    for draw, _, ids, _ in drawn:
        problem = task.problems[draw.problem]
        logits = logits_alone(trainer, problem.prompt, ids)
        logits[:, trainer.model.config.image_token_id] = -torch.inf  # TRL lets none be drawn
        assert logits.argmax(1).tolist() == ids
        logps = logits_alone(trainer, problem.prompt, ids).log_softmax(1)
        entropy = float(-(logps.exp() * logps).sum(1).mean())
        mine, blind = (
            float(found.gather(1, torch.tensor(ids)[:, None]).sum())
            for found in (logps, logits_alone(trainer, asked(shown(128)), ids).log_softmax(1))
        )
        assert (draw.logprob, draw.base_logprob) == pytest.approx((mine, mine), abs=2e-5)
        assert draw.entropy == pytest.approx(entropy, abs=2e-5)
        moved = max(moved, abs(mine - blind))
    assert moved > 1e-3  # so that another picture would have been noticed


@pytest.mark.long
@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_training_teaches_to_look(family, recipe, request) -> None:
    often = {"monitor_every": 20, "monitor_k": 16, "monitor_batch_size": 96}
    made = recipe(request.getfixturevalue(family), max_steps=60, save_steps=60, **often)
    train(made)
    history = json.loads((Path(made.training.output_dir) / "support.json").read_text())["steps"]
    assert history["0"]["pass_at_k/1"] < 0.5
    assert max(metrics["pass_at_k/1"] for metrics in history.values()) > 0.8  # without looking, half


@pytest.mark.long
@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_a_resumed_run_keeps_its_trajectory(family, recipe, request, logged) -> None:
    model = request.getfixturevalue(family)
    folder = Path(recipe(model).training.output_dir)

    def rows() -> list[Any]:
        return [(row["step"], row["loss"], row["reward"], row["kl"]) for row in logged(folder, 3) if "loss" in row]

    train(recipe(model))
    whole = rows()
    for name in ("checkpoint-3", "final"):
        shutil.rmtree(folder / name)
    train(recipe(model, resume=True))
    assert rows() == whole
    assert len(whole) == 3


@pytest.mark.long
@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_explorers_see_the_log_probabilities_of_what_was_drawn_before_the_picture(family, recipe, request) -> None:
    values = {"max_steps": 1, "monitor_every": 0, "train_args": {"odd": True}, "explorer": "unlikeliness"}
    made = recipe(request.getfixturevalue(family), **values)
    trainer = build_trainer(made)
    seen, rolled = [], trainer._rollouts
    prompts = {problem.id: problem.prompt for problem in trainer.verifier.task.problems}

    def checked(output: dict[str, Any]) -> Any:
        with torch.no_grad():
            ours = trainer._logps(trainer.model, output)
        for problem_id, ids, mask, logps in zip(
            trainer._local_ids, output["completion_ids"], output["completion_mask"], ours, strict=True
        ):
            drawn = ids[mask.bool()]
            alone = logits_alone(trainer, prompts[problem_id], drawn.tolist()).log_softmax(1)
            assert logps[mask.bool()].tolist() == pytest.approx(
                alone.gather(1, drawn[:, None])[:, 0].tolist(), abs=2e-5
            )
            seen.append(problem_id)
        trainer.model.train()
        return rolled(output)

    trainer._rollouts = checked
    trainer.train()
    assert len(seen) == 16


@pytest.mark.long
def test_served_weights_are_compared_on_the_text_of_such_prompts(llava, recipe) -> None:
    trainer = build_trainer(recipe(llava, monitor_every=0))
    rows = scored_sequences(trainer, trainer.verifier.task)
    image, equals = (trainer._tokenizer.convert_tokens_to_ids(token) for token in ("<image>", "="))
    assert rows
    assert all(row[0] == equals and image not in row for row in rows)


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_args": {"mixed": True}}, r"21 of 22 training and probe prompts"),
        ({"train_args": {"broken": True}}, r"problem 'train-0' of task 'shades': .*image"),
        ({"explorer": "dynamic_sampling"}, r"explorer DynamicSampling"),
        ({"explorer": "anchor"}, r"explorer Anchor"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, r"image tokens.*use_vllm: false"),
    ],
)
def test_what_does_not_go_with_images_is_refused(llava, recipe, values, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(recipe(llava, **values))


@pytest.mark.long
def test_the_monitor_refuses_images_where_a_trainer_of_ones_own_has_vllm_beside_it(llava, recipe, monkeypatch) -> None:
    trainer = build_trainer(recipe(llava))
    monkeypatch.setattr(pool, "draws_in_process", lambda trainer: True)
    settings: dict[str, Any] = {"k": 2, "score_k": 2, "batch": 8, "kl_to_base": False}
    with pytest.raises(ConfigError, match=r"image tokens.*use_vllm: false"):
        pool.PolicyPool(trainer, Shades("probe", 4), sampling=Sampling(max_new_tokens=4), **settings)


@pytest.mark.long
def test_a_model_of_text_is_refused(lab_base, recipe) -> None:
    with pytest.raises(ConfigError, match=r"images.*recipes/lab/base"):
        build_trainer(recipe(lab_base))


@pytest.mark.long
def test_seeding_puts_its_traces_behind_the_pictures(llava, recipe) -> None:
    made = recipe(llava, max_steps=2, explorer={"seeding": {"source": "base", "problems": 16, "k": 32}})
    trainer = build_trainer(made)
    outside, generate = [], trainer._generate

    def watched(prompts: Any) -> Any:
        made = generate(prompts)
        outside.append(list(trainer._off_policy))
        return made

    trainer._generate = watched
    trainer.train()
    assert len(outside) == 2
    assert all(any(of_step[3::4]) and not any(of_step[0::4]) for of_step in outside)  # the last of a group of 4


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/a.png", "example.org"),
        ("data:image/png,abcd", "image/png,abcd"),
        ("data:image/png;base64,", "unknown format"),
        ("data:image/png;base64,@@", "image"),
        ("data:image/png;base64,aGVsbG8=", "unknown format"),
        (shown(0)[:60], "image"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused(url, message) -> None:
    with pytest.raises(ConfigError, match=message):
        with_pictures(asked(url))


def encoded(picture: Image.Image, kind: str = "PNG", **more: Any) -> str:
    sink = io.BytesIO()
    picture.save(sink, format=kind, **more)
    return f"DATA:image/{kind.lower()};charset=utf-8;base64,{base64.b64encode(sink.getvalue()).decode()}\n"


def test_pictures_are_shown_as_people_see_them() -> None:
    def seen(url: str) -> Image.Image:
        return with_pictures(asked(url))[0]["content"][0]["image"]

    ink = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    ink.putpixel((0, 0), (0, 0, 0, 255))
    for mode in ("RGBA", "LA"):
        assert seen(encoded(ink.convert(mode))).tobytes() == bytes([0, 0, 0, 255, 255, 255])  # on white
    grey = Image.new("I;16", (2, 1), 0x8000)
    grey.putpixel((0, 0), 0xFFFF)
    assert seen(encoded(grey)).tobytes() == bytes([255, 255, 255, 128, 128, 128])
    turned = Image.Exif()
    turned[0x0112] = 6
    assert seen(encoded(Image.new("RGB", (40, 20)), "JPEG", exif=turned)).size == (20, 40)


def test_other_parts_are_refused_by_name() -> None:
    sound = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]
    with pytest.raises(ConfigError, match=r"problem 'p': .*text or image_url.*input_audio"):
        has_images(Problem("p", sound, ""))


def test_a_base_pool_is_of_one_size_of_images(llava) -> None:
    processor = AutoProcessor.from_pretrained(llava)
    before = template_fingerprint(processor)
    assert before != template_fingerprint(processor.tokenizer)
    processor.image_processor.size = {"shortest_edge": 32}
    assert template_fingerprint(processor) != before


@pytest.mark.long
def test_a_checkpoint_that_lacks_weights_is_not_resumed_from(llava, recipe) -> None:
    train(recipe(llava, max_steps=2, monitor_every=0))
    folder = Path(recipe(llava).training.output_dir)
    path = folder / "checkpoint-1" / "model.safetensors"
    weights = load_file(path)
    weights.pop(next(name for name in weights if "q_proj" in name))
    save_file(weights, path, {"format": "pt"})
    (path.parent / "checksums.json").unlink()  # as another program would have written it
    for name in ("checkpoint-2", "final"):
        shutil.rmtree(folder / name)
    with pytest.raises(ConfigError, match=r"is missing 1 weights of this model \(.*q_proj"):
        train(recipe(llava, max_steps=2, monitor_every=0, resume=True))


def test_a_prompt_is_known_by_its_pictures_after_a_trip_through_a_dataset_and_a_pickle() -> None:
    first, second = asked(shown(0)), asked(shown(1))
    stored = Dataset.from_list([{"prompt": first}, {"prompt": second}])["prompt"]
    made = [pickle.loads(pickle.dumps(with_pictures(prompt))) for prompt in stored]
    assert [picture_key(prompt) for prompt in made] == [picture_key(first), picture_key(second)]
    assert picture_key(first) != picture_key(second)
    assert without_images(stored[0]) == [{"role": "user", "content": [{"type": "text", "text": "="}]}]


@pytest.mark.long
def test_a_stock_trainer_is_measured_on_the_images_of_a_dataset(llava, tmp_path):
    from trl import GRPOConfig, GRPOTrainer

    from offleash import SupportCallback

    def rows(first, count):
        asked = [{"role": "user", "content": "="}]
        pictures = [Image.new("RGB", (16, 16), (shade,) * 3) for shade in range(first, first + count)]
        return [{"prompt": asked, "images": [picture], "first": "0123456789"} for picture in pictures]

    def correct(prompts, completions, images, first, **columns):
        assert all(part["type"] in ("image", "text") for prompt in prompts for part in prompt[0]["content"])
        assert all(picture.size == (16, 16) for pictures in images for picture in pictures)
        starts = [reply[0]["content"].strip()[:1] for reply in completions]
        return [float(start != "" and start in right) for start, right in zip(starts, first, strict=True)]

    trainer = GRPOTrainer(
        model=str(llava),
        reward_funcs=correct,
        args=GRPOConfig(
            output_dir=str(tmp_path / "run"),
            **{"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 4},
            **{"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "save_strategy": "no"},
        ),
        train_dataset=Dataset.from_list(rows(10, 8)),
    )
    monitor = SupportCallback(trainer, rows(100, 4), k=4, every=1)
    trainer.add_callback(monitor)
    trainer.train()
    assert sorted(monitor.history) == [0, 1]
    assert all(map(has_images, monitor.task.problems))
