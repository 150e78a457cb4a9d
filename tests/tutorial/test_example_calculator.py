"""The calculator tutorial: its problems, and its agent."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest
from tutorial_stage import Play, tutorial_config

from astune.config.schema import FileConfig, JsonlReaderConfig, TaskReaderConfig
from astune.runs.report import mean_baseline
from astune.schema import Task, TaskReaderError
from astune.scoring.arithmetic import calculate, format_number
from astune.task_reader import open_task_reader
from benchmarks.other_wordings import OTHERS
from tutorial.example_calculator import wordings
from tutorial.example_calculator.calculator import EXAMPLES
from tutorial.example_calculator.rules import counted_words, cue_words, part_solved
from tutorial.example_calculator.stories import ADDITIONS, KINDS, make_stories
from tutorial.example_calculator.tasks import DIFFICULTIES, TRAIN, VALIDATION, make_tasks
from tutorial.example_calculator.tasks import main as write_tasks
from tutorial.example_calculator.wordings import Wording

EVERY = tuple(DIFFICULTIES)
CONF = "example_calculator/calculator.yaml"
TASK = Task(task_id="sum", main_query="What is 49 + 15?", env_type="calculator", metadata={"answer": "64"})


def numbers(tasks: list[Task]) -> set[int]:
    return {int(number) for task in tasks for number in re.findall(r"\d+", task.main_query)}


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_problem_has_the_numbers_and_the_answer_of_its_expression(split):
    for task in make_tasks(split, 1000, difficulties=EVERY):
        expression = task.metadata["expression"]
        assert sorted(re.findall(r"\d+", expression)) == sorted(re.findall(r"\d+", task.main_query))
        assert format_number(calculate(expression)) == task.metadata["answer"]
        assert int(task.metadata["answer"]) >= 0
        assert "{" not in task.main_query


def test_held_out_problems_share_no_number_name_thing_or_wording_with_training():
    training, held_out = (
        make_tasks("train", 3000, difficulties=EVERY),
        make_tasks("validation", 1000, difficulties=EVERY),
    )
    assert not numbers(training) & numbers(held_out)
    assert not set(TRAIN.names) & set(VALIDATION.names)
    things: dict[str, set[str]] = {"train": set(), "validation": set()}
    for kind in ("addition", "subtraction", "both"):
        train_templates, held_out_templates = getattr(TRAIN, kind), getattr(VALIDATION, kind)
        assert not {t.text for t in train_templates} & {t.text for t in held_out_templates}
        assert (len(train_templates), len(held_out_templates)) == ((6, 3) if kind == "both" else (21, 3))
        for split, templates in (("train", train_templates), ("validation", held_out_templates)):
            things[split] |= {thing for template in templates for thing in template.things}
    assert not things["train"] & things["validation"]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_only_the_words_say_which_operation_a_problem_asks_for(split):
    operations: Counter[str] = Counter()
    for task in make_tasks(split, 500):
        first, second = (int(number) for number in re.findall(r"\d+", task.main_query))
        assert first > second
        sign = {"addition": "+", "subtraction": "-"}[task.metadata["operation"]]
        assert task.metadata["expression"] == f"{first}{sign}{second}"
        operations[sign] += 1
    assert operations["+"] == operations["-"] == 250


def verbs(wording: Wording) -> set[str]:
    """The words that tell what happens, without names, numbers and words that every sentence is made of."""
    told = " ".join(text for kind in KINDS for text in wording.events[kind])
    common = "a after and as being by car did does for had has have how in is it many number of on one or other others"
    common += " out the them then there they to two under up was were what with"
    return set(re.findall(r"[a-z]+", re.sub(r"\{\w+\}(?:'s)?", "", told).lower())) - set(common.split())


def test_held_out_stories_share_no_number_name_thing_verb_or_question_with_training():
    assert not numbers(make_stories("train", 2000)) & numbers(make_stories("validation", 1000))
    assert not verbs(wordings.TRAIN) & verbs(wordings.VALIDATION)
    for field in ("names", "things", "crowds", "places", "sorts", "owned", "owned_now", "there", "there_now"):
        assert not set(getattr(wordings.TRAIN, field)) & set(getattr(wordings.VALIDATION, field)), field


@pytest.mark.parametrize(("split", "wording"), [("train", None), ("validation", None), ("validation", OTHERS)])
def test_the_larger_number_comes_first_in_a_story_whatever_it_asks_for(split, wording):
    kinds: Counter[str] = Counter()
    for task in make_stories(split, 600, wording=wording):
        first, second = (int(number) for number in re.findall(r"\d+", task.main_query))
        assert first > second
        sign = "+" if task.metadata["kind"] in ADDITIONS else "-"
        assert task.metadata["expression"] == f"{first}{sign}{second}"
        kinds[task.metadata["kind"]] += 1
    assert kinds == dict.fromkeys(KINDS, 100)


def test_stories_are_trained_on_beside_problems_whose_words_say_what_to_do():
    splits = open_task_reader(tutorial_config("example_calculator/stories.yaml").task_reader).read()
    assert Counter(task.metadata["kind"] for task in splits.training) == {
        **dict.fromkeys(KINDS, 400),
        **dict.fromkeys(["cued addition", "cued subtraction"], 600),
    }
    assert {task.metadata["kind"] for task in splits.validation} == set(KINDS)


def test_a_rule_on_words_solves_the_held_out_problems_and_half_of_the_held_out_stories():
    assert part_solved(make_tasks("validation", 400), cue_words) == 1.0
    assert 0.4 < part_solved(make_stories("validation", 600, wording=OTHERS), cue_words) < 0.6
    held_out = make_stories("validation", 600)
    for training in (make_tasks("train", 1000), make_stories("train", 1000)):
        for rule in (cue_words, counted_words(training)):
            assert 0.4 < part_solved(held_out, rule) < 0.6


def test_the_solved_examples_are_held_out_problems_of_neither_split():
    shown = {text for role, text in EXAMPLES if role == "user"}
    assert not shown & {task.main_query for split in ("train", "validation") for task in make_tasks(split, 2000)}


def test_problems_depend_on_the_seed_alone_and_a_longer_list_begins_with_the_shorter():
    assert make_tasks("train", 50) == make_tasks("train", 200)[:50]
    assert make_tasks("train", 50, seed=1)[0].main_query != make_tasks("train", 50)[0].main_query


def test_difficulties_are_what_they_say():
    for difficulty, digits, operands in ((1, 2, 2), (2, 3, 2), (3, 2, 3)):
        for task in make_tasks("train", 100, difficulties=(difficulty,)):
            found = re.findall(r"\d+", task.metadata["expression"])
            assert (len(found), {len(number) for number in found}) == (operands, {digits})


@pytest.mark.slow
def test_more_problems_than_there_are_is_an_error():
    with pytest.raises(TaskReaderError, match=r"only \d+ of 100000 different problems"):
        make_tasks("validation", 100_000)


def test_the_file_that_the_command_writes_reads_back_as_the_same_tasks(tmp_path, monkeypatch):
    files = {}
    for split, number in (("train", 40), ("validation", 20)):
        files[split] = tmp_path / "made" / f"{split}.jsonl"
        arguments = ["--split", split, "--number", str(number), "--seed", "3", "--output", str(files[split])]
        monkeypatch.setattr(sys, "argv", ["tasks.py", *arguments, "--difficulty", "1", "3"])
        write_tasks()
    jsonl = JsonlReaderConfig(
        training=FileConfig(file_path=str(files["train"])), validation=FileConfig(file_path=str(files["validation"]))
    )
    from_files = open_task_reader(TaskReaderConfig(jsonl=jsonl)).read()
    params = {"training": 40, "validation": 20, "seed": 3, "difficulties": [1, 3]}
    reader = TaskReaderConfig(type="tutorial.example_calculator.tasks->CalculatorTaskReader", params=params)
    assert open_task_reader(reader).read() == from_files


def test_the_configuration_names_tasks_that_can_be_read():
    config = tutorial_config(CONF)
    splits = open_task_reader(config.task_reader).read()
    assert len(splits.validation) >= 96
    assert {task.env_type for task in splits.training} == {"calculator"}
    assert mean_baseline(splits.validation) == 1.0


async def test_the_agent_solves_a_problem_in_two_turns(play: Play):
    group = await play(CONF, TASK, ["<calc>49+15</calc>", r"\boxed{64}"])
    assert group.dropped is None
    for episode in group.episodes:
        assert (episode.status, episode.raw_reward) == ("success", 1.0)
        [timeline] = episode.timelines
        assert [span.sampled for span in timeline.spans].count(True) == 2


async def test_a_wrong_answer_a_stray_message_and_endless_calculating_are_no_success(play: Play):
    wrong = await play(CONF, TASK, ["<calc>49+15</calc>", r"\boxed{46}"])
    assert [(e.status, e.raw_reward) for e in wrong.episodes] == [("failed", 0.5)] * 2
    stray = await play(CONF, TASK, ["Well, 64."])
    assert [(e.status, e.raw_reward) for e in stray.episodes] == [("failed", 0.0)] * 2
    endless = await play(CONF, TASK, ["<calc>1+1</calc>"] * 3)
    assert [(e.status, e.raw_reward) for e in endless.episodes] == [("truncated", 0.1)] * 2
