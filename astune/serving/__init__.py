"""What every HTTP server of ours asks of a request before it acts on it, and how it listens."""

from astune.serving.guard import Guard, Refuse, has_token
from astune.serving.json_body import read_json

__all__ = ["Guard", "Refuse", "has_token", "read_json"]
