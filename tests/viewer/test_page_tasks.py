"""Episodes as a table, by task and by facet; agents as lanes; the same task of two runs; notes of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_words import until
from viewer_stage import make_episode, read_node, said_node, write_run

from astune.runs import RunNotes
from astune.schema import Episode, Reward

pytestmark = pytest.mark.slow
FAULTS = (Path(__file__).parent / "page_faults.js").read_text(encoding="utf-8")


def game() -> Episode:
    nodes = [
        read_node(0, None, "You are a werewolf.", agent="Bob"),
        said_node(1, 0, "I am a villager like you.", agent="Bob"),
        read_node(2, None, "Bob says: I am a villager like you.", agent="Carol", fork_cause="another agent"),
        said_node(3, 2, "That is a lie!", agent="Carol"),
    ]
    episode = make_episode(nodes=nodes, task="game", step=3, targets={"Bob": "werewolf", "Carol": "seer"})
    episode.reward = Reward(raw_reward=0.5, is_success=True, per_target={"werewolf": 1.0, "seer": 0.0})
    return episode


def measured(word: str, solved: list[int]) -> list[Episode]:
    example = [read_node(0, None, "An example?"), read_node(1, 0, "Its answer.", role="assistant")]
    return [
        make_episode(
            question=f"Is {task} even?",
            task=task,
            step=step,
            split="validation",
            reward=float(step in solved and task == "four"),
            nodes=[*example, read_node(2, 1, f"Is {task} even? {'Think well. ' * 80}"), said_node(3, 2, word)],
        )
        for task in ("four", "five")
        for step in (0, 2, 4)
    ]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_run(folder, measured("Yes, I think that it is.", [4]), experiment="first")
    write_run(folder, [*measured("No, I know that it is.", [0]), game()], experiment="second")
    return folder


@pytest.fixture
def runs(record, serve) -> tuple[str, str, str]:
    """The address of the viewer, and the names of the runs."""
    first, second = (f"{name}/{next((record / name).iterdir()).name}" for name in ("first", "second"))
    return serve(record), first, second


def test_the_table_has_the_question_and_titles_with_units_that_sort(page, runs):
    url, first, second = runs
    page.goto(f"{url}#run={first}&view=episodes")
    page.locator(".wide-row .question", has_text="Is four even?").first.wait_for()
    agent = page.locator(".wide-headings button", has_text="Agent")
    assert not agent.is_visible(), "the only agent's name says nothing"
    page.goto(f"{url}#run={second}&view=episodes")
    agent.wait_for()
    assert page.locator(".wide-headings button").all_inner_texts() == [
        *("Question", "Step", "Status", "Reward", "Agent", "Length\ntokens", "Turns", "Time\ns")
    ]
    page.goto(f"{url}#run={first}&view=episodes")
    agent.wait_for(state="hidden")
    page.get_by_role("button", name="Reward", exact=True).click()
    page.get_by_role("button", name="Reward", exact=True).click()
    until(page, "document.querySelector('[data-episode]')?.innerText.includes('success')")
    page.get_by_role("button", name="Reward 1: 1").click()
    page.locator(".episode-pane .count", has_text="1").wait_for()
    assert page.locator("[data-episode]").count() == 1
    assert page.evaluate(FAULTS) == []


def test_tasks_show_what_was_learnt_and_lead_to_their_episodes(page, runs):
    url, first, _ = runs
    page.goto(f"{url}#run={first}&view=episodes")
    page.get_by_role("tab", name="By task").click()
    page.get_by_role("combobox", name="Change").wait_for()
    assert page.get_by_role("combobox", name="Sort by").count() == 1, "tasks have an order of their own"
    page.get_by_role("combobox", name="Change").select_option("solved")
    row = page.locator("[data-task]")
    row.get_by_text("newly solved").wait_for()
    assert row.count() == 1
    assert "0 % → 100 %" in row.inner_text()
    assert row.locator("svg[role=img]").get_attribute("aria-label") == "step 0: 0/1\nstep 2: 0/1\nstep 4: 1/1"
    assert page.evaluate(FAULTS) == []
    row.click()
    page.get_by_text("Only the task four").wait_for()
    until(page, "document.querySelectorAll('[data-episode]').length === 3")
    page.get_by_role("button", name="All tasks").click()
    until(page, "document.querySelectorAll('[data-episode]').length === 6")


def test_given_answers_are_told_from_sampled_ones_and_tokens_open_at_these(page, runs, record):
    url, first, _ = runs
    page.set_viewport_size({"width": 1440, "height": 500})
    page.goto(f"{url}#run={first}&id=validation-000004-four-000-1")
    page.locator('[data-node="1"]').get_by_text("given").wait_for()
    page.locator('[data-node="3"]').get_by_text("sampled").wait_for()
    assert page.locator(".final dd").all_inner_texts() == ["Yes, I think that it is.", "2"]
    assert not page.locator(".message .agent-name").first.is_visible()
    page.get_by_role("tab", name="Tokens").click()
    page.locator(".tokens .t.masked").first.wait_for()
    assert page.locator(".tokens").evaluate("list => list.scrollTop") > 0


def test_the_same_task_of_another_run_stands_beside_it_word_by_word(page, runs):
    url, first, second = runs
    page.goto(f"{url}#run={first}&id=validation-000004-four-000-1&face=compare")
    page.get_by_role("combobox", name="Episodes of").select_option(second)
    page.get_by_text("The same task in second").wait_for()
    page.locator(".side .t.mine").first.wait_for()
    assert "".join(page.locator('[data-side="a"] .mine').all_inner_texts()) == "Yesthink"
    assert "".join(page.locator('[data-side="b"] .its').all_inner_texts()) == "Noknow"
    last = page.locator(".pair").last.inner_text()
    assert "that it is." in last, "a difference does not break the line"


def test_an_episode_without_a_group_stands_beside_what_the_task_was_before_training(page, runs):
    url, first, _ = runs
    page.goto(f"{url}#run={first}&id=validation-000004-four-000-1&face=compare")
    page.get_by_text("The same task in this run, any step: 2").wait_for()
    assert page.locator(".group tbody tr.other td").first.inner_text() == "0"
    page.get_by_text("same tokens").wait_for()
    heads = page.locator(".diff-heads span").all_inner_texts()
    assert heads == ["step 4 · #0 · Reward 1", "step 0 · #0 · Reward 0"]


def test_an_episode_is_compared_with_the_one_of_its_group_whose_reward_differs_most(page, serve, tmp_path):
    group = [make_episode(number, reward=reward) for number, reward in enumerate((1.0, 1.0, 0.5, 0.0))]
    run = write_run(tmp_path, group)
    page.goto(f"{serve(run)}#id={group[0].episode_id}&face=compare")
    page.locator(".group tr.other", has_text="#3").wait_for()


def test_agents_stand_as_lanes_with_their_rewards_and_what_they_saw(page, runs):
    url, _, second = runs
    page.goto(f"{url}#run={second}&id=train-000003-game-000-1")
    page.get_by_role("tab", name="Agents").click()
    heads = page.locator(".lane-table thead th").all_inner_texts()
    assert "werewolf · Reward 1" in heads[1]
    assert "seer · Reward 0" in heads[2]
    assert page.get_by_label("Carol read this").count() == 1
    assert page.get_by_label("Bob read this").count() == 0
    assert page.evaluate(FAULTS) == []
    page.get_by_role("combobox", name="Show").select_option("a Carol")
    assert page.locator(".saying").all_inner_texts() == ["That is a lie!"]
    page.get_by_role("button", name="Read as Carol").click()
    page.locator('.message[data-node="2"]').wait_for()
    assert page.locator('.message[data-node="0"]').count() == 0
    assert page.locator('.message[data-node="2"] .agent-name').is_visible()


def test_tags_note_and_archive_are_kept(page, runs, record):
    url, first, _ = runs
    page.goto(f"{url}#view=runs")
    page.get_by_role("button", name=f"Tags and note of first {first.split('/')[1]}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tags").fill("baseline, 第一")
    dialog.get_by_label("Note").fill("Before the new prompt.")
    assert page.evaluate(FAULTS) == []
    dialog.get_by_role("button", name="Save").click()
    page.locator(".tags", has_text="baseline").wait_for()
    assert RunNotes.read(record / first).tags == ["baseline", "第一"]
    page.get_by_role("searchbox").fill("第一")
    until(page, "document.querySelectorAll('.run-table tbody tr').length === 1")
    page.get_by_role("button", name="Tags and note of").click()
    dialog.get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="hidden")  # until then the page behind it takes no keys
    page.get_by_role("searchbox").fill("")
    page.locator(".run-table tbody", has_text="second").wait_for()
    until(page, "document.querySelectorAll('.run-table tbody tr').length === 1")
    assert "second" in page.locator(".run-table tbody").inner_text()
    page.get_by_text("Archived too (1)").click()
    until(page, "document.querySelectorAll('.run-table tbody tr').length === 2")


def test_a_policy_that_no_setting_names_is_chosen(page, serve, tmp_path):
    games = [make_episode(0, targets={"solver": "werewolf"}), make_episode(1, reward=0.0, targets={"solver": "judge"})]
    run = write_run(tmp_path, games)
    with open(run / "config.yaml", "a") as file:
        file.write("  models:\n    wolf: {targets: [werewolf]}\n")
    page.goto(f"{serve(run)}#view=episodes")
    until(page, "document.querySelectorAll('.episode-row').length === 2")
    policy = page.get_by_label("Policy")
    assert policy.locator("option").all_text_contents() == ["any", "default · 1", "wolf · 1"]
    policy.select_option("default")
    until(page, "document.querySelectorAll('.episode-row').length === 1")
    assert policy.input_value() == "default"
    assert page.locator("[data-episode]").get_attribute("data-episode") == games[1].episode_id
