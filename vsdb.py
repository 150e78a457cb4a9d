"""The spelling `from vsdb import bp`, which earlier documents of the project use."""

from astune.debug import bp

__all__ = ["bp"]
