"""Environments that an agent acts in: their contract, the handle to one instance, and those that are built in."""

from astune.env_service.base import Environment, EnvState, EnvStep, text_of
from astune.env_service.handle import EmbeddedHandle, EnvironmentHandle, SynchronousHandle, open_environment

__all__ = [
    "EmbeddedHandle",
    "EnvState",
    "EnvStep",
    "Environment",
    "EnvironmentHandle",
    "SynchronousHandle",
    "open_environment",
    "text_of",
]
