"""An episode for a terminal: every message in the order in which it was written, forks where they are, the verdict.

Blue is what takes part in the loss, yellow what does not, as in the log viewer. Knows nothing of runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from astune.renderers.text_renderer import is_in_characters
from astune.runs import message_text
from astune.schema import Episode, Forest, MessageNode, visible

_MAX_READ_CHARACTERS = 2000
"""The characters shown of a message that the model read; what it wrote is shown whole."""
_VERDICTS = {"success": "green", "failed": "yellow", "truncated": "yellow", "error": "bold red"}


def draw_episode(episode: Episode) -> RenderableType:
    """The whole episode, with a line above and its books below."""
    parts: list[RenderableType] = [
        Rule(Text(f"episode {visible(episode.episode_id)}", style="bold"), style="cyan", align="left")
    ]
    unit = unit_of(episode)
    for node, depth in walk(episode.forest):
        indent = "  " * depth
        if node.fork_cause is not None:
            after = "the beginning" if node.parent is None else f"message {node.parent}"
            parts.append(Text(f"{indent}fork after {after}: {node.fork_cause}", style="bold magenta"))
        parts.append(_message(node, indent, unit))
        parts += [
            Text(f"{indent}  malformed call: {visible(raw)}", style="bold red", overflow="fold")
            for raw in node.malformed_calls
        ]
    parts += [Text(line, overflow="fold") for line in _token_counts(episode)]
    parts.append(_verdict(episode))
    return Group(*parts)


def walk(forest: Forest) -> Iterator[tuple[MessageNode, int]]:
    """Every message once, a branch to its end before the next one, with how many forks lead to it.

    0 - 1 - 2 - 5        ->  0 1 2 5 at depth 0, then 3 4 at depth 1
         \\- 3 - 4
    """
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for node in forest.nodes:
        children[node.parent].append(node.node_id)
    waiting = [(child, 0 if child == children[None][0] else 1) for child in reversed(children[None])]
    while waiting:
        node_id, depth = waiting.pop()
        yield forest.nodes[node_id], depth
        first, *others = children[node_id] or [None]
        waiting += [(other, depth + 1) for other in reversed(others) if other is not None]
        if first is not None:
            waiting.append((first, depth))


def unit_of(episode: Episode) -> str:
    """Return the vocabulary of an episode's sequences; a text-only endpoint has no tokens to show."""
    return "characters" if is_in_characters(episode.forest) else "tokens"


def _message(node: MessageNode, indent: str, unit: str) -> Text:
    body = message_text(node.content, node.tool_calls)
    if not node.sampled and len(body) > _MAX_READ_CHARACTERS:
        body = f"{body[:_MAX_READ_CHARACTERS]} … ({len(body) - _MAX_READ_CHARACTERS:,} more characters)"
    who = node.role if node.agent in ("agent", node.role) else f"{node.role} ({node.agent})"
    tokens = f"{node.n_sampled} {unit}" if node.sampled else f"{len(node.token_ids)} {unit} read"
    if node.finish_reason == "length":
        tokens += ", cut at its limit"
    if node.tools:
        tokens += f", with the tools {visible(', '.join(tool['function']['name'] for tool in node.tools))}"
    text = Text(f"{indent}{node.node_id:>3} {visible(who)}", style="bold", overflow="fold")
    text.append(f"  {tokens}\n", style="not bold dim")
    style = "blue" if node.sampled and node.trainable else "yellow"
    if node.reasoning:
        text.append(_indented(node.reasoning.strip(), indent) + "\n", style=f"not bold italic {style}")
    text.append(_indented(body.strip() or "(nothing)", indent), style=f"not bold {style}")
    return text


def _indented(body: str, indent: str) -> str:
    return "\n".join(f"{indent}    {line}" for line in visible(body).splitlines())


def _token_counts(episode: Episode) -> Iterator[str]:
    forest, timelines = episode.forest, episode.timelines
    read = sum(len(node.prompt_delta) for node in forest.nodes)
    calls = sum(node.sampled for node in forest.nodes)
    forks = sum(node.fork_cause is not None for node in forest.nodes)
    tokens = f"{read:,} {unit_of(episode)} read, {forest.sampled_tokens():,} sampled"
    yield f"{_counted(calls, 'call')}, {tokens}, {_counted(forks, 'fork')}"
    in_characters = is_in_characters(forest)
    for number, timeline in enumerate(timelines, start=1):
        trained = f"tokens, {timeline.n_trained:,} of them would be trained"
        fate = "characters, which cannot be trained" if in_characters else trained
        yield f"timeline {number}: {len(timeline.token_ids):,} {fate}"
    yield ", ".join(f"{name} {seconds:.1f} s" for name, seconds in episode.timings.items())


def _verdict(episode: Episode) -> Text:
    text = Text(episode.status, style=_VERDICTS[episode.status], overflow="fold")
    if episode.reward is not None:
        text.append(f", reward {episode.reward.raw_reward:g}")
    for name, value in (episode.reward.per_target or {}).items() if episode.reward is not None else ():
        text.append(f", {visible(name)} {value:g}")
    if episode.error is not None:
        text.append(f": {visible(episode.error)}")
    return text


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
