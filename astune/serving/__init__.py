"""Common parts of our HTTP servers: checks of requests, and listening."""

from astune.serving.guard import Guard, has_token
from astune.serving.json_body import read_json

__all__ = ["Guard", "has_token", "read_json"]
