"""Draw the pictures of docs/en/tokens.md: a group of two episodes of the small real model, run, stored and read back.

The solver is shown two calls of a tool, calls it, and is asked twice for the answer; then its question is edited, and
it is asked once more. The helper, which is not trained, continues from the same two calls.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from pathlib import Path

from episode_pictures import forest_svg, timelines_svg
from tree_picture import NamedRow, tree_svg

from astune import AstuneProxy, Episode, Task, Workflow, WorkflowOutput
from astune.backbone.engines import open_model
from astune.backbone.recorder import Recorder
from astune.cli import let_openmp_spin_briefly
from astune.config import AstuneConfig
from astune.renderers import Tool
from astune.rollout import NullObserver, RolloutPool
from astune.runs import RunDirectory
from astune.schema import EpisodeGroup, Message
from astune.trainer.samples import weighted
from astune.trainer.trie import build_tree

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
CONFIG = {
    "seed": 0,
    "deterministic": True,
    "model": {"path": "builtin:smollm2-135m"},
    "engine": {"kv_cache_gb": 0.1, "max_batch_size": 8},
    "rollout": {"max_model_len": 1024, "max_response_length_in_one_turn": 40, "max_attempts": 1, "temperature": 0.5},
}
TASK = Task(
    task_id="sum",
    main_query="What is 58 + 23?",
    metadata={"edited": "What is 58 plus 23?", "helpers": "What is 64 + 19?"},
)
ADD: Tool = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


def call_of(a: int, b: int) -> Message:
    function = {"name": "add", "arguments": f'{{"a": {a}, "b": {b}}}'}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"{a}+{b}", "type": "function", "function": function}],
    }


EXAMPLES: list[Message] = [
    {"role": "user", "content": "What is 12 + 47?"},
    call_of(12, 47),
    {"role": "user", "content": "What is 31 + 45?"},
    call_of(31, 45),
]
"""Example calls, which a small model needs before it calls a tool."""


class Adding(Workflow):
    trainable_targets = ("solver",)

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        solver, helper = proxy.as_agentscope_model("solver"), proxy.as_agentscope_model("helper")
        messages = [*EXAMPLES, {"role": "user", "content": task.main_query}]
        call = await solver.achat(messages, [ADD])
        messages += [call, *results_of(call)]
        answers = [await solver.achat(messages, [ADD]) for _ in range(2)]
        messages[len(EXAMPLES)] = {"role": "user", "content": task.metadata["edited"]}
        answers.append(await solver.achat(messages, [ADD]))
        await helper.achat([*EXAMPLES, {"role": "user", "content": task.metadata["helpers"]}], [ADD])
        return WorkflowOutput(reward=sum("81" in answer["content"] for answer in answers) / len(answers))


def results_of(answer: Message) -> list[Message]:
    """Return the results of an answer's calls, or a reminder where there is none."""
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": added(call["function"]["arguments"])}
        for call in answer.get("tool_calls", [])
    ]
    return results or [{"role": "user", "content": "Use the tool."}]


def added(arguments: str) -> str:
    return str(sum(int(number) for number in re.findall(r"-?\d+", arguments)))


async def run(folder: Path) -> list[Episode]:
    """Run the group, and read its episodes from where they were stored."""
    config = AstuneConfig.model_validate(CONFIG)
    with RunDirectory.create(folder, "pictures") as record:
        async with open_model(config) as model:
            with record.open_episodes() as store:
                recorder = Recorder(store, NullObserver())
                pool = RolloutPool(model.engine, model.renderer, Adding, None, config, recorder)
                await pool.run_groups(
                    [TASK], step=1, split="train", num_repeat=2, temperature=config.rollout.temperature
                )
        with record.episodes() as reader:
            return sorted(reader.episodes(), key=lambda episode: episode.repeat)


def pictures(episodes: list[Episode]) -> dict[str, str]:
    """Each picture by its file's name: forest and timelines of the first episode, and the tree of all."""
    first = episodes[0]
    return {
        "tokens-forest.svg": forest_svg(first.forest),
        "tokens-timelines.svg": timelines_svg(first.timelines),
        "tokens-tree.svg": tree_of(EpisodeGroup(TASK, episodes)),
    }


def tree_of(group: EpisodeGroup) -> str:
    """The tree that a training step computes for the group."""
    timelines = weighted([group], [[episode.raw_reward for episode in group.episodes]], "episode")
    names = [
        f"{number}.{position}"
        for number, episode in enumerate(group.episodes, start=1)
        for position, timeline in enumerate(episode.timelines, start=1)
        if timeline.n_trained
    ]
    tree = build_tree([timeline.input_ids for timeline in timelines])
    rows = [NamedRow(name, places.tolist()) for name, places in zip(names, tree.rows, strict=True)]
    calls = [
        len(prompt_ids) + len(completion.token_ids) - 1  # nothing follows from the last token
        for episode in group.episodes
        for node, prompt_ids, completion in episode.forest.replay()
        if node.trainable
    ]
    return tree_svg(tree.segments, rows, calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=ASSETS, help="the folder to write to")
    into: Path = parser.parse_args().into
    let_openmp_spin_briefly()
    with tempfile.TemporaryDirectory() as folder:
        episodes = asyncio.run(run(Path(folder)))
    for name, svg in pictures(episodes).items():
        (into / name).write_text(svg, encoding="utf-8")
        sys.stderr.write(f"{into / name}\n")


if __name__ == "__main__":
    main()
