"""The algorithm that the configuration names, made with its parameters."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, get_args

from astune.algorithm.base import Algorithm, TokenWeights
from astune.algorithm.cispo import CISPO
from astune.algorithm.dapo import DAPO
from astune.algorithm.dpo import DPO
from astune.algorithm.grpo import GRPO, DrGRPO
from astune.algorithm.gspo import GSPO
from astune.algorithm.reinforce_plus_plus import ReinforcePlusPlus
from astune.algorithm.rloo import RLOO
from astune.algorithm.supervised import Supervised
from astune.config.arguments import require_accepted
from astune.config.imports import import_class, is_reference
from astune.config.schema import AstuneConfig, LossConfig
from astune.schema import ConfigError, boundary_now

ALGORITHMS: dict[str, type[Algorithm]] = {
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "rloo": RLOO,
    "reinforce_plus_plus": ReinforcePlusPlus,
    "gspo": GSPO,
    "cispo": CISPO,
    "dapo": DAPO,
    "sft": Supervised,
    "dpo": DPO,
}
"""Algorithms by their configuration names."""

_KEY = "trainer.algorithm"
_OF_LOSS = ("normalise_advantages", "clip_low", "clip_high")
"""Parameters that may also stand in `trainer.loss`."""


def load_algorithm(config: AstuneConfig, base_dir: Path | None = None) -> Algorithm:
    """The algorithm that `trainer.algorithm` names.

    Args:
        base_dir: the folder of the YAML file, for `path/file.py->Class`.

    Raises:
        ConfigError: it does not import, or has no such parameter, or refuses a value.
    """
    chosen, params = _class_of(config, base_dir), _params(config)
    values, keys = (
        {name: value for name, (value, _) in params.items()},
        {name: key for name, (_, key) in params.items()},
    )
    require_accepted(chosen, values, key=f"{_KEY}.params", positional=0, keys=keys)
    hint = "see docs/en/algorithms.md; its parameters are those of its __init__"
    with boundary_now(ConfigError, f"{_KEY}: making {chosen.__name__}", hint=hint):
        algorithm: Algorithm = chosen(**values)
    algorithm.max_response_tokens = config.rollout.max_response_length_in_one_turn
    if algorithm.learns_from == "preferences":
        _require_no_terms(config)
    algorithm.token_weights = config.trainer.loss.token_weights or algorithm.token_weights
    for name, options in (("token_weights", get_args(TokenWeights)), ("baseline", ("group", "batch"))):
        if (value := getattr(algorithm, name)) not in options:
            raise ConfigError(
                f"{_KEY}: {chosen.__name__}.{name} is {value!r}", hint=f"set it to one of {', '.join(options)}"
            )
    return algorithm


def _require_no_terms(config: AstuneConfig) -> None:
    """Refuse settings that weight, add or leave out single tokens, where the loss is one of whole pairs."""
    if config.trainer.samples:
        raise ConfigError(
            f"trainer.samples is set, and the loss of {config.trainer.algorithm.type} is one of pairs",
            hint="leave it out",
        )
    loss = config.trainer.loss
    given = {"token_weights": loss.token_weights, "kl_coef": loss.kl_coef, "entropy_coef": loss.entropy_coef}
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"trainer.loss.{name} is {value}, and the loss of {config.trainer.algorithm.type} is one of pairs",
                hint=f"leave it out; {_KEY}.params.beta holds the policy to the starting model",
            )


def _class_of(config: AstuneConfig, base_dir: Path | None) -> Any:
    name = config.trainer.algorithm.type
    if is_reference(name):
        return import_class(name, key=f"{_KEY}.type", base=Algorithm, base_dir=base_dir)
    if name not in ALGORITHMS:
        close = difflib.get_close_matches(name, ALGORITHMS, n=1)
        raise ConfigError(
            f"{_KEY}.type: there is no algorithm {name!r}",
            hint=f"did you mean {close[0]}?"
            if close
            else f"take one of {', '.join(ALGORITHMS)}, or name your own as `path/file.py->Class`",
        )
    return ALGORITHMS[name]


def _params(config: AstuneConfig) -> dict[str, tuple[Any, str]]:
    """Each parameter's value, and the key that it was set by."""
    loss: LossConfig = config.trainer.loss
    given = {name: (value, f"{_KEY}.params.{name}") for name, value in config.trainer.algorithm.params.items()}
    for name in _OF_LOSS:
        value = getattr(loss, name)
        if value is None:
            continue
        if name in given and given[name][0] != value:
            raise ConfigError(
                f"trainer.loss.{name} is {value}, and {_KEY}.params.{name} is {given[name][0]}",
                hint="set one of the two",
            )
        given.setdefault(name, (value, f"trainer.loss.{name}"))
    return given
