"""Running code that a model wrote, without harm."""

from astune.config.schema import SandboxConfig, SandboxLimits
from astune.sandbox.base import SandboxResult
from astune.sandbox.sandbox import BACKENDS, Sandbox
from astune.sandbox.shared import shared_sandbox

__all__ = ["BACKENDS", "Sandbox", "SandboxConfig", "SandboxLimits", "SandboxResult", "shared_sandbox"]
