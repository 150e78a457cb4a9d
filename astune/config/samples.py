"""Rules of `trainer.samples`: which sampled messages are trained, and with what weight."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from astune.config.strict import StrictModel


class SampleRule(StrictModel):
    """A rule of `trainer.samples`: an action and the messages that it applies to, by default all.

    Rules apply in order, each to the messages that the previous ones left in training.
    """

    do: Literal["drop", "cap", "reweight", "deduplicate"]
    """`drop` excludes the messages from training. `cap` keeps at most `messages` of them for each agent of an episode,
    drawn by the episode's seed. `reweight` multiplies their advantages by `weight`. `deduplicate` keeps one of the
    messages of a group that the same target wrote after the same prompt tokens, and trains it on the mean of their
    advantages."""
    agent: list[str] = Field(default_factory=list[str])
    """Agents whose messages the rule applies to."""
    target: list[str] = Field(default_factory=list[str])
    """Target tags of these agents."""
    status: list[Literal["success", "failed", "truncated"]] = Field(
        default_factory=list[Literal["success", "failed", "truncated"]]
    )
    """Episode outcomes whose messages the rule applies to."""
    calls: tuple[int, int | None] | None = None
    """Start and end of a range, as in Python's slices, over the messages of an agent in an episode: `[0, 2]` are its
    first two, `[-1, null]` is its last."""
    min_tokens: int | None = Field(default=None, ge=1)
    """Only messages with at least this many sampled tokens."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Only messages with at most this many sampled tokens."""
    messages: int | None = Field(default=None, ge=1)
    """Number that `cap` keeps; not a key of other rules."""
    weight: float | None = Field(default=None, gt=0)
    """Factor of `reweight`; not a key of other rules. Use `drop` to exclude messages."""

    @model_validator(mode="after")
    def _own_keys(self) -> Self:
        for key, rule in (("messages", "cap"), ("weight", "reweight")):
            if (getattr(self, key) is not None) != (self.do == rule):
                raise ValueError(
                    f"`do: {rule}` requires `{key}`" if self.do == rule else (f"`{key}` is only allowed with {rule}")
                )
        if self.calls is not None:
            first, end = self.calls
            if end is not None and (first < 0) == (end < 0) and first >= end:
                raise ValueError(f"`calls: [{first}, {end}]` is an empty range: no message matches")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError("`min_tokens` is above `max_tokens`: no message matches")
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, value: object) -> object:
        """Accept one name in place of a list of names."""
        if not isinstance(value, dict):
            return value
        names = ("agent", "target", "status")
        return {key: [one] if key in names and isinstance(one, str) else one for key, one in value.items()}
