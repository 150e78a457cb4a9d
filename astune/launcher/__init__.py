"""What runs beside a run: today the backup of everything that made it."""

from astune.launcher.backup import back_up, config_path_of

__all__ = ["back_up", "config_path_of"]
