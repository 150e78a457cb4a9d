"""TextWorld's games as an environment: real games, made here, won by their own walkthrough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_stage import running

from astune.env_service import EnvironmentHandle, open_environment
from astune.environments.textworld import read_as_prose
from astune.schema import EnvError, Task

NAME = "textworld:tw-simple"


def task(task_id: str = "train-17", env_type: str = NAME, **metadata) -> Task:
    return Task(task_id=task_id, main_query=task_id, env_type=env_type, metadata=metadata)


def test_banner_prompt_and_blank_rows_are_left_out():
    said = (
        "\n\n   ____  \n  |$$$| \n\nYour task is here.\n\n\n-= Kitchen =-   \nA door.\n\n\n\n>      -= Kitchen =-0/1\n"
    )
    assert read_as_prose(said, "Your task is here.") == "Your task is here.\n\n-= Kitchen =-\nA door."
    assert read_as_prose("You open it.\n\n\n>", "Your task is here.") == "You open it."


@pytest.mark.slow
class TestGames:
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _installed(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        pytest.importorskip("textworld")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ASTUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
            yield

    async def opened(self, asked: Task) -> tuple[EnvironmentHandle, str]:
        handle = open_environment(asked.env_type, asked, seed=0)
        assert handle is not None
        return handle, (await handle.create()).state[-1]["content"]

    async def win(self, asked: Task) -> list[str]:
        """What is said until the game is won by the objective's own commands."""
        handle, opening = await self.opened(asked)
        commands = walkthrough(asked)
        said = [opening]
        for number, command in enumerate(commands, start=1):
            step = await handle.step({"role": "assistant", "content": f"> {command}\nThen I will see."})
            said += [message["content"] for message in step.state]
            assert step.is_terminated == (number == len(commands)), command
        assert (await handle.evaluate(), await handle.evaluate(sparse=False)) == (1.0, 1.0)
        await handle.release()
        return said

    async def test_a_game_is_won_by_its_walkthrough_and_said_the_same_through_a_service(self):
        here = await self.win(task())
        assert here[0].startswith("Get ready to pick stuff up")
        assert "-= Bedroom =-" in here[0]
        assert here[1].startswith("You open the ")
        with running(NAME) as service:
            assert await self.win(task(env_url=service.url)) == here

    async def test_half_a_game_is_half_a_score_and_no_success(self):
        handle, _ = await self.opened(task(max_turns=4))
        for command in ("blow up", "", *walkthrough(task())[:2]):
            step = await handle.step({"role": "assistant", "content": command})
        assert step.is_terminated
        assert (await handle.evaluate(), await handle.evaluate(sparse=False)) == (0.0, 0.2)
        assert await handle.get_info() == "score 2 of 10 after 4 commands"
        await handle.release()

    async def test_commands_can_be_shown(self):
        handle, opening = await self.opened(task(show_commands=True))
        assert "\n\nYou could: " in opening
        assert walkthrough(task())[0] in opening
        await handle.release()

    async def test_a_custom_game_has_the_settings_of_its_task(self):
        small = task("t", "textworld:custom", game_seed=3, settings={"nb_rooms": 1, "nb_objects": 2})
        handle, opening = await self.opened(small)
        assert opening.count("-= ") == 1
        assert (await handle.evaluate()) == 0.0
        await handle.release()

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            (task("mine"), "give the task metadata 'game_seed'"),
            (task(env_type="textworld:tw-simpel"), "no challenge 'tw-simpel'; use one of .*tw-simple"),
            (task(settings={"rewards": "rare"}), r"settings of tw-simple: .*rare.*tw-make tw-simple --help"),
            (task(settings={"colour": 1}), "unrecognized arguments: --colour 1"),
            (task(env_type="textworld:custom", settings={"colour": 1}), "no setting 'colour'"),
        ],
    )
    async def test_a_mistake_is_named_with_its_fix(self, asked, said):
        handle = open_environment(asked.env_type, asked, seed=0)
        assert handle is not None
        with pytest.raises(EnvError, match=said):
            await handle.create()


def walkthrough(asked: Task) -> list[str]:
    """The commands that win the game, from the file that TextWorld wrote beside it."""
    import textworld

    from astune.environments.textworld import game_file, game_seed

    file: Path = game_file("tw-simple", game_seed(asked), {})
    return textworld.Game.load(str(file.with_suffix(".json"))).metadata["walkthrough"]
