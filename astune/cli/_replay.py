"""`astune replay RUN --check`: every stored episode rendered again, call by call."""

from __future__ import annotations

from rich.progress import Progress

from astune.app.console import Console
from astune.runs import RunDirectory, resolve_run
from astune.schema import RunStoreError

_SHOWN = 20
"""Faults that are printed; the rest is counted."""


def check_run(run: str) -> int:
    """0 where every call of every episode replays token for token, 1 otherwise."""
    from astune.config.saved import load_saved
    from astune.context_tracker import faults
    from astune.engine.model_files import resolve_model
    from astune.renderers import load_renderer
    from astune.renderers.text_renderer import renderer_of

    directory = RunDirectory.open(resolve_run(run))
    console = Console()
    renderer = load_renderer(resolve_model(load_saved(directory.config_path).model.path))
    episodes = calls = found = 0
    with directory.episodes() as reader, Progress(console=console, transient=True) as progress:
        bar = progress.add_task("episodes", total=reader.count())
        for episode in reader.episodes():
            episodes += 1
            calls += sum(node.sampled for node in episode.forest.nodes)
            for fault in faults(episode.forest, renderer_of(episode.forest, renderer)):
                found += 1
                if found <= _SHOWN:
                    console.say(f"{episode.episode_id}: {fault}")
            progress.advance(bar)
    if not episodes:
        raise RunStoreError(f"the run {directory.path} has no episodes yet")
    outcome = f"{found:,} faults" if found else "every one replays token for token"
    console.say(f"{calls:,} calls of {episodes:,} episodes: {outcome}")
    return 1 if found else 0
