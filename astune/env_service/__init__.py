"""Environments that an agent acts in: their interface, the handle to one instance, and the built-in ones."""

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
