"""Services around a run: companions, process records, the backup, `.env`, the message at the end."""

from astune.launcher.backup import back_up, config_path_of

__all__ = ["back_up", "config_path_of"]
