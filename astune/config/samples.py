"""Rules of `trainer.samples`: which sampled messages are trained, and with what weight."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from astune.config.strict import StrictModel


class SampleRule(StrictModel):
    """One rule of `trainer.samples`: what it does, and with which messages; with all where no key limits them.

    Rules apply in their order, each to the messages that the ones before it left in training.
    """

    do: Literal["drop", "cap", "reweight", "deduplicate"]
    """`drop` leaves the messages out of training. `cap` keeps at most `messages` of them for each agent of an episode,
    drawn by the episode's seed. `reweight` multiplies their advantages by `weight`. `deduplicate` keeps one of those in
    a group that the same target wrote after reading the same tokens, and trains it on the mean of their advantages."""
    agent: list[str] = Field(default_factory=list[str])
    """Names of the agents whose messages are meant."""
    target: list[str] = Field(default_factory=list[str])
    """Target tags of these agents."""
    status: list[Literal["success", "failed", "truncated"]] = Field(
        default_factory=list[Literal["success", "failed", "truncated"]]
    )
    """Outcomes of the episodes whose messages are meant."""
    calls: tuple[int, int | None] | None = None
    """First and end of a range, as in Python's slices, among the messages that an agent wrote in an episode: `[0, 2]`
    are its first two, `[-1, null]` is its last."""
    min_tokens: int | None = Field(default=None, ge=1)
    """Only messages of at least so many sampled tokens."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Only messages of at most so many."""
    messages: int | None = Field(default=None, ge=1)
    """What `cap` keeps; no key of another rule."""
    weight: float | None = Field(default=None, gt=0)
    """What `reweight` multiplies by; no key of another rule. To leave messages out is `drop`."""

    @model_validator(mode="after")
    def _own_keys(self) -> Self:
        for key, rule in (("messages", "cap"), ("weight", "reweight")):
            if (getattr(self, key) is not None) != (self.do == rule):
                raise ValueError(f"`do: {rule}` needs `{key}`" if self.do == rule else f"`{key}` is a key of {rule}")
        if self.calls is not None:
            first, end = self.calls
            if end is not None and (first < 0) == (end < 0) and first >= end:
                raise ValueError(f"`calls: [{first}, {end}]` is empty: no message is meant")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError("`min_tokens` is above `max_tokens`: no message is meant")
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, value: object) -> object:
        """One name in place of a list of names."""
        if not isinstance(value, dict):
            return value
        names = ("agent", "target", "status")
        return {key: [one] if key in names and isinstance(one, str) else one for key, one in value.items()}
