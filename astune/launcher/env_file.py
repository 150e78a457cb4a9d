"""`.env` in the working directory: a machine's settings and secrets. It never overrides the environment."""

from __future__ import annotations

from pathlib import Path

from astune.schema import ConfigError


def read_env_file(folder: Path) -> None:
    """Add the `KEY=VALUE` lines of `folder/.env` to the environment, unless a key is already set.

    Raises:
        ConfigError: a line is malformed, or the file cannot be read; the message names the line.
    """
    path = folder / ".env"
    if not path.is_file():
        return
    from dotenv import load_dotenv
    from dotenv.parser import parse_stream

    try:
        with path.open(encoding="utf-8") as stream:
            lines = list(parse_stream(stream))
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path} cannot be read: {cause}", hint="it must be a text file in UTF-8") from cause
    broken = [line.original for line in lines if line.error or (line.key is not None and line.value is None)]
    if broken:
        raise ConfigError(
            f"{path}, line {broken[0].line} is not KEY=VALUE",  # not shown: it may be half of a secret
            hint="write one KEY=VALUE a line, a value with special characters in quotes",
        )
    load_dotenv(path, override=False)
