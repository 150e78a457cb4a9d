"""Detection of unparsed tool calls: a parser of another model family finds none, without any error."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from astune.schema import Episode, EpisodeGroup, MessageNode

_SHOWN_CHARACTERS = 600
_log = logging.getLogger(__name__)


def warn_of_unread_calls(groups: Sequence[EpisodeGroup]) -> bool:
    """Warn where tools were offered and no answer was read as a call. Returns whether tools were offered."""
    episodes = [episode for group in groups for episode in (*group.episodes, *group.failed_attempts)]
    answers = [node for episode in episodes for node in _answers_with_tools(episode)]
    if answers and not any(node.tool_calls for node in answers):
        _log.warning(
            "tools were offered for %d answers of the first step, but no tool call was parsed. The model may not "
            "call tools yet, or uses another format than its chat template: show a solved example with a call in the "
            "agent's first messages, or force one with tool_choice='required'. The first answer: %r",
            len(answers),
            str(answers[0].content)[:_SHOWN_CHARACTERS],
        )
    return bool(answers)


def _answers_with_tools(episode: Episode) -> Iterator[MessageNode]:
    return (
        node
        for node in episode.forest.nodes
        if node.sampled and node.constraint is None and episode.forest.path(node.node_id)[0].tools
    )
