"""The models of a run, each with the policies on it. One model for all policies is the case of one base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astune.config.policies import DEFAULT_POLICY, PolicyConfig


@dataclass(frozen=True, slots=True)
class Base:
    """A model with the policies on it: adapters, or the one policy that trains every weight, or frozen ones without
    an adapter."""

    path: str
    """The model, as `model.path` names one."""
    key: str
    """The configuration key that names it."""
    policies: Mapping[str, PolicyConfig]

    @property
    def whole(self) -> str | None:
        """The policy that trains every weight; None where adapters train, or nothing does."""
        return next((name for name, policy in self.policies.items() if policy.trains_all), None)

    @property
    def trained(self) -> dict[str, PolicyConfig]:
        return {name: policy for name, policy in self.policies.items() if policy.train}

    @property
    def adapters(self) -> dict[str, str | None]:
        """The folder that each adapter begins with, by policy; None where it is new."""
        return {
            name: policy.start
            for name, policy in self.policies.items()
            if policy.start is not None or (policy.train and not policy.trains_all)
        }


def bases_of(model_path: str, models: Mapping[str, PolicyConfig]) -> list[Base]:
    """Return the models of a run, that of `model.path` first; reads from disk which paths are adapters.

        model.path M; wolf: rank 16; owl: rank 16 on N; fox: rank 8 on N; hen: rank 0 from M; cat: frozen N

    gives  M (wolf)   N (owl, fox, cat)   M (hen)

    Policies share a model unless they train every weight. That of `model.path` also answers for the agents that no
    policy names; it is left out where a policy `default` does and none is on it. The policy "" is that of a run of one.
    """
    shared: dict[str, dict[str, PolicyConfig]] = {identity(model_path): {}}
    paths = {identity(model_path): (model_path, "model.path")}
    whole: list[Base] = []
    for name, policy in models.items():
        path, key = (model_path, "model.path") if policy.base is None else (policy.base, f"models.{name}.path")
        if policy.trains_all:
            whole.append(Base(path, key, {name: policy}))
            continue
        paths.setdefault(identity(path), (path, key))
        shared.setdefault(identity(path), {})[name] = policy
    if {DEFAULT_POLICY, ""} & models.keys() and not shared[identity(model_path)]:
        del shared[identity(model_path)]
    return [Base(*paths[one], policies) for one, policies in shared.items()] + whole


def identity(model_path: str) -> str:
    """Return a model's folder without links and relative parts; a hub id and `builtin:NAME` as they are."""
    folder = Path(model_path).expanduser()
    return str(folder.resolve()) if folder.exists() else model_path
