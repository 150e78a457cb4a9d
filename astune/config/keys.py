"""Index of the configuration's keys, derived from the schema, for search, descriptions and validation.

Errors, `astune config explain` and the reference page all use it, so they agree. It reads no file and holds no values.
"""

from __future__ import annotations

import difflib
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from astune.config.schema import AstuneConfig
from astune.config.strict import StrictModel

ROOT = "astune"
"""Root key of a YAML file."""
NAME = "NAME"
"""Placeholder for a user-chosen name in the path of a key."""


_LENGTH, _STEPS, _TASKS = "rollout.max_response_length_in_one_turn", "trainer.total_steps", "trainer.tasks_per_step"
OF_OTHER_TOOLS: dict[str, tuple[str, ...]] = {
    "adv_estimator": ("trainer.algorithm",),
    "batch_size": (_TASKS, "engine.max_batch_size"),
    "beta": ("trainer.loss.kl_coef",),
    "clip_grad": ("trainer.optim.max_grad_norm",),
    "clip_ratio_high": ("trainer.loss.clip_high",),
    "clip_ratio_low": ("trainer.loss.clip_low",),
    "epochs": (_STEPS,),
    "epsilon": ("trainer.loss.clip_low",),
    "epsilon_high": ("trainer.loss.clip_high",),
    "eval_steps": ("trainer.test_freq",),
    "kl_loss_coef": ("trainer.loss.kl_coef",),
    "learning_rate": ("trainer.optim.lr",),
    "logger": ("trackers",),
    "lora_alpha": ("model.lora.alpha",),
    "lora_rank": ("model.lora.rank",),
    "loss_type": ("trainer.algorithm",),
    "lr_warmup_steps": ("trainer.optim.warmup_steps",),
    "max_completion_length": (_LENGTH,),
    "max_new_tokens": (_LENGTH,),
    "max_response_length": (_LENGTH,),
    "max_steps": (_STEPS,),
    "max_tokens": (_LENGTH,),
    "min_lr_ratio": ("trainer.optim.lr_final_ratio",),
    "n": ("rollout.num_repeat",),
    "num_generations": ("rollout.num_repeat",),
    "num_train_epochs": (_STEPS,),
    "peft_config": ("model.lora",),
    "per_device_train_batch_size": (_TASKS, "trainer.tokens_per_microbatch"),
    "ppo_max_token_len_per_gpu": ("trainer.tokens_per_microbatch",),
    "ppo_mini_batch_size": ("trainer.loss.updates_per_step",),
    "report_to": ("trackers",),
    "reward_funcs": ("task_judge.judge_protocol",),
    "rollout_is_threshold": ("trainer.loss.importance_cap",),
    "save_steps": ("trainer.save_freq",),
    "total_epochs": (_STEPS,),
    "total_training_steps": (_STEPS,),
    "train_batch_size": (_TASKS,),
}
"""Names of TRL's and verl's settings, as docs/en/coming_from.md compares them, and what they are called here."""


@dataclass(frozen=True)
class Key:
    """A key of the configuration; `path` is dotted and excludes the root key."""

    path: str
    field: FieldInfo
    aliases: tuple[str, ...]
    section: type[StrictModel] | None

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def full(self) -> str:
        return f"{ROOT}.{self.path}"

    @property
    def is_open(self) -> bool:
        """Return whether any keys may stand below it (a mapping that is passed on unchanged)."""
        return any(get_origin(option) is dict or option is dict for option in _options(self.field.annotation))

    @property
    def entry(self) -> type[StrictModel] | None:
        """Section type of the values of a mapping with user-chosen names; None for any other key."""
        values = get_args(self.field.annotation)[1:] if get_origin(self.field.annotation) is dict else ()
        return next((value for value in values if isinstance(value, type) and issubclass(value, StrictModel)), None)

    @property
    def is_list(self) -> bool:
        """Return whether the section may be given several times, as a list."""
        lists = [option for option in _options(self.field.annotation) if get_origin(option) is list]
        return self.section is not None and bool(lists)

    @property
    def takes_text(self) -> bool:
        """Return whether a string may replace the section."""
        return str in _options(self.field.annotation)

    @property
    def is_optional(self) -> bool:
        return type(None) in _options(self.field.annotation)

    @property
    def reason(self) -> str:
        """Description of the key: the field's docstring, or its model's for a section."""
        text = self.field.description or (self.section.__doc__ if self.section else "") or ""
        return " ".join(text.split())

    @property
    def kind(self) -> str:
        """Type of the value in plain words."""
        return plain_type(self.field.annotation)

    @property
    def allowed(self) -> str:
        """Allowed range in plain words; empty where the type says everything."""
        words: list[str] = []
        for bound in self.field.metadata:
            if isinstance(bound, Ge):
                words.append(f"at least {bound.ge}")
            elif isinstance(bound, Gt):
                words.append(f"above {bound.gt}")
            elif isinstance(bound, Le):
                words.append(f"at most {bound.le}")
            elif isinstance(bound, Lt):
                words.append(f"below {bound.lt}")
        return " and ".join(words)

    @property
    def expected(self) -> str:
        """Type and range in one phrase, for errors."""
        return f"{self.kind}, {self.allowed}" if self.allowed else self.kind

    def default(self) -> Any:  # defaults have as many types as there are keys
        value = self.field.get_default(call_default_factory=True)
        return None if value is PydanticUndefined else value

    @property
    def is_required(self) -> bool:
        return self.field.is_required()


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def plain_type(annotation: Any) -> str:
    """Describe a type in a user's words."""
    options = _options(annotation)
    if len(options) > 1:
        return " or ".join(plain_type(option) for option in options)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    if annotation in names:
        return names[annotation]
    if annotation is type(None):
        return "null"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        words = [str(arg) for arg in args]
        return f"one of {', '.join(words)}" if len(words) > 1 else f"`{words[0]}`"
    if origin is tuple and args[-1] is ...:
        return f"a list, each {plain_type(args[0])}"
    if origin is tuple:
        return f"a list of {len(args)} ({', '.join(plain_type(arg).removeprefix('a ') for arg in args)})"
    if origin is list:
        return "a list"
    if origin is dict:
        return "a mapping of your own keys"
    return "a section"


def _section_of(annotation: Any) -> type[StrictModel] | None:
    """Section that a type stands for, either directly or as the elements of a list."""
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    is_section = isinstance(annotation, type) and issubclass(annotation, StrictModel)
    return annotation if is_section else None


@cache
def keys_of(model: type[StrictModel]) -> dict[str, Key]:
    """A section's keys by name, in the schema's order; paths are relative to the section."""
    found: dict[str, Key] = {}
    for name, field in model.model_fields.items():
        choices = field.validation_alias
        aliases = [choice for choice in choices.choices if choice != name] if isinstance(choices, AliasChoices) else []
        sections = [section for option in _options(field.annotation) if (section := _section_of(option))]
        found[name] = Key(name, field, tuple(map(str, aliases)), sections[0] if sections else None)
    return found


@cache
def all_keys() -> dict[str, Key]:
    """Every key of the configuration by its dotted path, sections before what stands in them."""
    found: dict[str, Key] = {}

    def walk(model: type[StrictModel], prefix: str) -> None:
        for name, key in keys_of(model).items():
            path = f"{prefix}{name}"
            found[path] = Key(path, key.field, key.aliases, key.section)
            if key.section is not None:
                walk(key.section, f"{path}.")
            if key.entry is not None:
                found[f"{path}.{NAME}"] = Key(f"{path}.{NAME}", FieldInfo(annotation=key.entry), (), key.entry)
                walk(key.entry, f"{path}.{NAME}.")

    walk(AstuneConfig, "")
    return found


def canonical(path: str) -> str:
    """The path with the root key removed and every alias replaced by its key's name; unknown parts stay."""
    parts = path.split(".")
    if parts[0] == ROOT:
        parts = parts[1:]
    model: type[StrictModel] | None = AstuneConfig
    entry: type[StrictModel] | None = None
    for position, part in enumerate(parts):
        if entry is not None:  # user-chosen name
            model, entry = entry, None
            continue
        key = find(model, part) if model is not None else None
        if key is None:
            break
        parts[position] = key.name
        model, entry = key.section, key.entry
    return ".".join(parts)


def key_at(path: str) -> Key | None:
    """Return the key at a canonical path, which may contain user-chosen names; None if there is none."""
    known, parts = all_keys(), path.split(".")
    for position in range(1, len(parts)):
        above = known.get(".".join(parts[:position]))
        if above is not None and above.entry is not None:
            parts[position] = NAME
    return known.get(".".join(parts))


_AS_GOOD_AS = 0.1
"""Largest difference in similarity at which two names are both suggested, such as `model` and `models`."""


def find(model: type[StrictModel], name: str) -> Key | None:
    """Find the key of a section by its name or alias."""
    keys = keys_of(model)
    return keys.get(name) or next((key for key in keys.values() if name in key.aliases), None)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def nearest(path: str) -> list[str]:
    """Return the known full paths closest to `path`, most likely first; often one, at most three.

    A name of TRL or verl comes first, then the same name at another level, below the section of `path` first, then
    similar names in the same section, then similar names anywhere.
    """
    section, _, name = path.rpartition(".")
    known = all_keys()
    elsewhere = [key.full for key in known.values() if name == key.name or name in key.aliases]
    elsewhere.sort(key=lambda full: not full.startswith(f"{ROOT}.{section}."))
    exact = [known[meant].full for meant in OF_OTHER_TOOLS.get(name, ())] + elsewhere
    if exact:
        return exact[:3]
    siblings = {key.name: key.full for key in known.values() if key.path.rpartition(".")[0] == section}
    close = difflib.get_close_matches(name, siblings, n=2, cutoff=0.65)
    if close:
        return [siblings[each] for each in close if _likeness(close[0], name) - _likeness(each, name) < _AS_GOOD_AS]
    names: dict[str, list[str]] = {}
    for key in known.values():
        for spelling in (key.name, *key.aliases):
            names.setdefault(spelling, []).append(key.full)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return names[close[0]][:3] if close else []
