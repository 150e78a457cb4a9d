"""What is refused before anything starts, and how the vLLM server that we start is started."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from astune.algorithm import GRPO
from astune.backbone import vllm
from astune.backbone.local import check_trainable, evaluate
from astune.backbone.parts import UserParts
from astune.config.schema import AstuneConfig
from astune.rollout import NullObserver
from astune.schema import ConfigError, Task
from astune.workflow import Workflow

ROOT = Path(__file__).parents[2]
PARTS = UserParts([Task(task_id=str(n), main_query="?") for n in range(8)], [], Workflow, None, GRPO())


def config(**sections: dict[str, object]) -> AstuneConfig:
    return AstuneConfig.model_validate({"engine": {"type": "vllm"}, **sections})


REPLAY = {"trainer": {"loss": {"constrained_tokens": "replay"}}}


@pytest.mark.parametrize("engine", [{"type": "vllm"}, {"type": "openai", "base_url": "http://127.0.0.1:1"}], ids=str)
@pytest.mark.parametrize(
    ("sections", "said", "hint"),
    [
        (REPLAY, "constrained_tokens is replay, and engine.type is", "leave it out"),
        ({"deterministic": True}, "deterministic is true, and engine.type is", "set it to false"),
    ],
)
def test_what_only_the_engine_in_this_process_keeps_to_is_refused_with_the_setting_to_change(
    engine, sections, said, hint
):
    with pytest.raises(ConfigError, match=said) as told:
        check_trainable(config(engine=engine, **sections), PARTS)
    assert hint in told.value.hint


def test_servers_are_trained_with_where_nothing_speaks_against_it():
    check_trainable(config(), PARTS)


@pytest.mark.parametrize(("engine", "meant"), [("in_process", "replay"), ("vllm", "mask"), ("openai", "mask")])
def test_answers_under_a_grammar_are_trained_where_their_masks_can_be_computed_again(engine: str, meant: str):
    assert config(engine={"type": engine}).constrained_tokens == meant
    assert config(engine={"type": engine}, **REPLAY).constrained_tokens == "replay"


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_answers_under_a_grammar_are_left_out_where_a_cluster_trains(backbone: str):
    assert config(engine={}, backbone=backbone).constrained_tokens == "mask"


@pytest.mark.parametrize(
    ("reader", "hint"),
    [
        ("dataset_file", "set task_reader.jsonl.validation.file_path"),
        ("huggingface", "set task_reader.huggingface.validation_split"),
        ("env_service", "set task_reader.env_service.validation_split"),
        ("mine.py->Mine", "return some from validation_tasks of mine.py->Mine"),
    ],
)
def test_an_evaluation_without_held_out_tasks_names_the_setting_of_its_reader(reader: str, hint: str):
    with pytest.raises(ConfigError, match="no held-out tasks") as told:
        asyncio.run(evaluate(config(task_reader={"type": reader}), PARTS, NullObserver()))
    assert told.value.hint == hint


def words(takes_weights: bool, *, few_episodes: bool = False, **sections: dict[str, object]) -> list[str]:
    server = vllm.vllm_server(
        config(**sections), Path("/models/m"), takes_weights=takes_weights, few_episodes=few_episodes
    )
    assert server is not None
    assert server.health_url == "http://127.0.0.1:8000/health"
    return list(server.command)


def test_a_server_can_be_given_weights_only_where_it_is_trained_with_and_listens_to_this_machine_alone():
    ours, plain = words(True), words(False)
    for command in (ours, plain):
        assert command[command.index("--host") + 1] == "127.0.0.1"
        assert command[command.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert "VLLM_SERVER_DEV_MODE=1" in ours
    assert f"PYTHONPATH={vllm.WORKER}" in ours
    assert ours[ours.index("--worker-extension-cls") + 1] == "astune_weights.TakesWeights"
    assert (vllm.WORKER / "astune_weights.py").is_file()
    assert not {"VLLM_SERVER_DEV_MODE=1", "--worker-extension-cls"} & set(plain)
    assert "PYTHONPATH=" in plain


def test_no_module_of_the_working_directory_stands_in_for_one_of_its_own(tmp_path: Path):
    (tmp_path / "shadow.py").write_text("")
    command = words(True, engine={"type": "vllm", "vllm": {"python": sys.executable}})
    before = command[: command.index("-m") + 1]
    ended = subprocess.run([*before, "shadow"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named shadow" in ended.stderr


@pytest.mark.parametrize("takes_weights", [True, False])
def test_it_computes_in_the_trainers_format(takes_weights: bool):
    cpu = {"device": "cpu"}
    for dtype in ("float32", "bfloat16"):
        command = words(takes_weights, model=cpu | {"dtype": dtype})
        assert command[command.index("--dtype") + 1] == dtype
    automatic = words(takes_weights, model=cpu)
    assert automatic[automatic.index("--dtype") + 1] in ("float32", "bfloat16")


def test_it_reads_prompts_whole_on_a_cpu():
    command = words(False, model={"device": "cpu"}, rollout={"max_model_len": 9000})
    assert "--no-enable-chunked-prefill" in command
    assert command[command.index("--max-num-batched-tokens") + 1] == "9000"


def test_it_compiles_for_training_and_not_for_a_few_episodes():
    assert "--enforce-eager" in words(False, few_episodes=True)
    assert "--enforce-eager" not in words(True)


def test_the_users_own_arguments_come_last():
    command = words(True, engine={"type": "vllm", "vllm": {"arguments": ["--dtype", "float16"]}})
    assert command[-2:] == ["--dtype", "float16"]


def test_the_page_shows_a_server_of_ones_own_started_as_a_run_starts_its_own():
    page = (ROOT / "docs" / "en" / "engines.md").read_text()
    block = next(block for block in re.findall(r"```bash\n(.*?)```", page, re.S) if "VLLM_SERVER_DEV_MODE" in block)
    shown = block.replace("\\\n", " ").split()
    folder = Path(shown[shown.index("export", 1) + 1].removeprefix("PYTHONPATH="))
    assert (ROOT / folder).resolve() == vllm.WORKER.resolve()
    ours = words(True)
    for option in (word for word in shown if word.startswith("--")):
        assert option in ours
    for option in ("--worker-extension-cls", "--logprobs-mode", "--host"):
        assert shown[shown.index(option) + 1] == ours[ours.index(option) + 1]


def test_what_is_added_to_vllms_workers_needs_nothing_of_astune(tmp_path: Path):
    """An interpreter that sees that folder and the standard library alone imports it."""
    code = (
        f"import sys; sys.path.insert(0, {str(vllm.WORKER)!r}); import astune_weights; print(astune_weights.PROTOCOL)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().isdigit()
