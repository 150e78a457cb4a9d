"""Settings of tasks that are made: from documents, and from a few examples."""

from __future__ import annotations

from pydantic import Field

from astune.config.strict import StrictModel

AXES = ("wording", "numbers", "constraints", "composition", "harder", "easier")


class DataGenerationConfig(StrictModel):
    """Tasks that the helper model makes and that are verified before they are kept: `astune data`, and the reader
    `data_generation`."""

    documents: list[str] = Field(default_factory=list)
    """Files and folders to make tasks from: text, Markdown, HTML, PDF, Word, PowerPoint."""
    seeds: str = ""
    """A JSONL file of example tasks, each with its reference answer, to make variations of; with documents, examples
    of what questions about them are like."""
    env_url: str = ""
    """Explore the environment of the examples, which then need no answer, and make objectives of what is reached in it:
    the address of the service that hosts it, or `local` for one in this process."""
    number: int = Field(default=200, ge=1)
    """Tasks that are wanted, held-out ones among them."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """The part of the documents, or of the examples, whose tasks are held out."""
    seed: int = Field(default=0, ge=0)
    """Draws which documents and examples are held out, and the order in which they are used."""
    tries: int = Field(default=3, ge=1)
    """How often each task is solved again before it is kept; the answers have to agree."""
    chunk_tokens: int = Field(default=400, ge=32)
    """Tokens of a passage at most."""
    show_passage: bool = False
    """Put the passage into the task, in front of the question."""
    closed_book: bool = False
    """Keep only what the helper model cannot answer without the passage."""
    axes: list[str] = Field(default_factory=lambda: list(AXES))
    """How examples are varied: each is a prompt, `vary_NAME.txt`."""
    originals: bool = True
    """Train on the examples as well, and not only on what was made of them."""
