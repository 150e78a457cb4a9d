"""GSM8K's own solutions as demonstrations of the math agent: which rows, which programs, and the agent's own tokens."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from astune_command import astune
from tutorial_stage import ROOT, Play, tutorial_config

from astune.config.schema import HuggingFaceReaderConfig, TaskReaderConfig
from astune.engine.local.grammar import Grammars
from astune.renderers import Renderer
from astune.rollout.demonstrations import demonstration
from astune.rollout.request import EpisodeRequest
from astune.runs import RunDirectory, resolve_run
from astune.schema import Task
from astune.task_reader.task_reader_base import TaskSplits
from tutorial.example_math_agent.worked import NotWorked, WorkedRows, program_of

CONF = "example_math_agent/worked.yaml"
CLIPS = {
    "question": "Natalia sold clips to 48 friends in April, and half as many in May. How many did she sell altogether?",
    "answer": "In May 48/2 = <<48/2=24>>24.\nTogether 48+24 = <<48+24=72>>72 clips.\n#### 72",
}
PAGES = {
    "question": "Lena reads 12 pages a day. How many days does a book of 60 pages take?",
    "answer": "<<60/12=5>>5\n#### 5",
}


def rows_of(folder: Path, train: Iterable[dict[str, str]], test: Iterable[dict[str, str]]) -> WorkedRows:
    (folder / "main").mkdir()
    for split, rows in (("train", train), ("test", test)):
        (folder / "main" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = HuggingFaceReaderConfig(dataset_path=str(folder), subset="main", validation_split="test")
    return WorkedRows(TaskReaderConfig(type="worked", huggingface=data))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Task:
    [task] = rows_of(tmp_path_factory.mktemp("clips"), [CLIPS], [PAGES]).read().training
    return task


@pytest.mark.parametrize(
    ("answer", "code", "printed"),
    [
        (CLIPS["answer"], "first = 48 / 2\nprint(48 + first)", "72.0"),
        (PAGES["answer"], "print(60 / 12)", "5.0"),
        ("<<1,000*2=2000>> is unread", None, "cannot be read"),
        ("<<.25*(100-20)=20>>20\n#### 20", "print(0.25 * (100 - 20))", "20.0"),
        ("<<2.50+2.50=5.00>>5 <<10*5=50>>50\n#### $50", None, "cannot be read"),
        ("<<2.50+2.50=5.00>>5 <<10*5=50>>50\n#### 50", "first = 2.5 + 2.5\nprint(10 * first)", "50.0"),
        ("<<1200*2=2400>>2,400\n#### 2,400", "print(1200 * 2)", "2400"),
        ("<<6/2=3>>3 <<3*3=9>>9\n#### 9", "first = 6 / 2\nprint(first * first)", "9.0"),
        ("<<5-8=-3>> <<-3+4=1>>1\n#### 1", None, "without the first one's result"),
        ("<<6/0=0>>\n#### 0", None, "cannot be read"),
        ("<<9**9**9=1>>\n#### 1", None, "cannot be read"),
        ("<<len('a')=1>>\n#### 1", None, "cannot be read"),
        ("<<07+1=8>>8\n#### 8", None, "cannot be read"),
        ("<<5=5>>5\n#### 5", None, "cannot be read"),
        ("<<0.1+0.2=0.3>>0.3\n#### 0.3", None, "does not give the answer"),
        ("<<2*3=6>>6 <<2*4=8>>8\n#### 8", None, "without the first one's result"),
        ("<<2*3=6>>6\n#### 7", None, "does not give the answer"),
        ("<<1/128=0.0078125>>\n#### 0.0078125", None, "no answer of the agent"),
        ("no calculation\n#### 7", None, "more than two"),
        ("<<1+1=2>><<2+1=3>><<3+1=4>>\n#### 4", None, "more than two"),
    ],
)
def test_calculations_become_a_program_or_a_reason(answer: str, code: str | None, printed: str):
    if code is None:
        with pytest.raises(NotWorked, match=printed):
            program_of(answer)
    else:
        assert program_of(answer) == (code, printed)


def test_other_rows_are_left_out_and_counted(tmp_path: Path):
    wrong = {**CLIPS, "answer": "<<48/2=24>>24\n#### 72"}
    told: list[str] = []
    splits = rows_of(tmp_path, [CLIPS, wrong, {**wrong, "question": "Why?"}], [PAGES, wrong]).read(told.append)
    assert [task.main_query for task in splits.training] == [CLIPS["question"]]
    assert [task.main_query for task in splits.validation] == [PAGES["question"]]
    assert "1 of 3 training rows; left out: 2 with a last calculation that does not give the answer" in told
    assert "1 of 2 held-out rows; left out: 1 with a last calculation that does not give the answer" in told
    assert "messages" not in splits.validation[0].metadata


def test_a_row_is_solved_by_two_calls_and_only_they_are_learned(clips: Task):
    *read, question, code, result, answer = clips.metadata["messages"]
    assert question["content"] == CLIPS["question"]
    assert [json.loads(call["tool_calls"][0]["function"]["arguments"]) for call in (code, answer)] == [
        {"code": "first = 48 / 2\nprint(48 + first)"},
        {"result": r"\boxed{72.0}"},
    ]
    assert result["content"] == "<returncode>0</returncode><stdout>72.0\n</stdout><stderr></stderr>"
    assert {message["weight"] for message in read if message["role"] == "assistant"} == {0}
    assert not {"weight"} & {*code, *answer}


@pytest.mark.slow
async def test_a_demonstration_is_what_the_agent_plays(
    play: Play, renderer: Renderer, tokenizer: Any, smol_folder: Path, clips: Task
):
    """Token for token, with the agent's own instructions, tools, examples and sandbox."""
    [learned] = demonstration(EpisodeRequest(clips, "train", 1, 0, 1.0), renderer, tutorial_config(CONF)).timelines
    answers = [tokenizer.decode(learned.token_ids[s.start : s.end]) for s in learned.spans if s.sampled]
    assert len(answers) == 2
    group = await play(CONF, clips, answers)
    assert [(episode.status, episode.raw_reward) for episode in group.episodes] == [("success", 1.0)] * 2
    [played] = group.episodes[0].timelines
    assert played.token_ids == learned.token_ids
    assert played.loss_mask == learned.loss_mask
    grammars = Grammars(smol_folder, len(tokenizer))
    for span in filter(lambda span: span.sampled, played.spans):  # and a forced call may be what is learned
        assert span.constraint is not None
        assert len(grammars.masks(span.constraint, played.token_ids[span.start : span.end])) == span.end - span.start


@pytest.mark.slow
def test_the_real_rows_print_what_they_show(gsm8k: Path, tmp_path: Path):
    splits = real_rows(gsm8k, tmp_path)
    assert (len(splits.training), len(splits.validation)) == (2124, 328)
    for task in splits.training:
        _, code, result, _ = task.metadata["messages"][-4:]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(json.loads(code["tool_calls"][0]["function"]["arguments"])["code"], {})
        assert f"<stdout>{printed.getvalue()}</stdout>" in result["content"]


def real_rows(gsm8k: Path, folder: Path) -> TaskSplits:
    train, test = (map(json.loads, (gsm8k / f"{split}.jsonl").open()) for split in ("train", "test"))
    return rows_of(folder, train, test).read()


@pytest.mark.slow
def test_the_page_s_commands_learn_the_rows_and_reinforce_the_model(tiny_folder: Path, tmp_path: Path):
    """As the page says, with a random model and two rows: the demonstrations, then the agent from what they made."""
    rows_of(tmp_path, [CLIPS, {**CLIPS, "question": "How many?"}], [PAGES])
    conf = str(ROOT / "tutorial" / CONF)
    small = ("rollout.num_repeat=2", "trainer.tasks_per_step=2", "rollout.max_response_length_in_one_turn=32")
    words = [f"task_reader.huggingface.dataset_path={tmp_path}", "trainer.total_steps=1", *small]
    flags = [part for word in words for part in ("--set", word)]
    astune(tmp_path, "sft", conf, *flags, "--set", f"model.path={tiny_folder}")
    astune(tmp_path, "export", "launcher_record/worked", "--to", "worked_model")
    flags += ["--set", "model.path=worked_model", "--set", "experiment_name=reinforced"]
    astune(tmp_path, "--conf", conf, *flags)
    demonstrated, sampled = (_only_step(tmp_path / "launcher_record" / name) for name in ("worked", "reinforced"))
    assert demonstrated["episodes/demonstrated_tokens_mean"] > 0
    assert demonstrated["engine/sampled_tokens"] == 0 < sampled["engine/sampled_tokens"]


def _only_step(experiment: Path) -> dict[str, float]:
    [step] = [line.metrics for line in RunDirectory.open(resolve_run(experiment)).metrics() if line.kind == "train"]
    return step
