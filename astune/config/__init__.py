"""One typed, closed configuration: read, checked, explained and written back."""

from astune.config.explain import explain
from astune.config.imports import import_class, is_reference
from astune.config.loader import dump, load_config
from astune.config.schema import AstuneConfig

__all__ = ["AstuneConfig", "dump", "explain", "import_class", "is_reference", "load_config"]
