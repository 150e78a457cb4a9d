"""Detection of likely keys, which are not written into a run's backup.

    command line   --set judge.api_key=sk-1 --token abc      ->  --set judge.api_key=*** --token ***
    patch, source  +OPENAI_API_KEY = "sk-1"                  ->  +OPENAI_API_KEY = ***
    anywhere       hf_AbC..., sk-..., AKIA..., private keys  ->  ***

The last word of a name decides whether it is a key: `api_key_env` names a variable, `max_tokens` a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

KEY_FILES = tuple(f":(exclude,icase,glob)**/{name}" for name in (".env*", "*.pem", "*.key", "id_*"))
"""Key files, whose changes are excluded from a patch, as pathspecs of git."""
_WORDS = "key|apikey|token|secret|password|passwd|credential|credentials"
_NAME = re.compile(rf"(?:^|[^a-z0-9])(?:{_WORDS})$", re.IGNORECASE)
_GIVEN = rb"""["']?\s*(?::=|[=:])\s*)"""
_ASSIGNED = re.compile(
    rb"((?:^|[^a-z0-9])(?:(?:api|access|secret|private)[_-]?key|secret|password|passwd|credentials?)"
    + _GIVEN
    + rb"""("[^"\s]{4,}"|'[^'\s]{4,}'|[^\s"'(){}\[\].,;$<*]{8,}(?=\s|$))""",
    re.IGNORECASE,
)
_ASSIGNED_NUMBERS = re.compile(
    rb"((?:^|[^a-z0-9])(?:key|token)" + _GIVEN + rb"""(["']?(?=[^\s"']*\d)[\w+/=.-]{16,}["']?(?=[\s,]|$))""",
    re.IGNORECASE,
)
"""Assignments of numbers: `key` and `token` often name no secret, so their values have to look like one."""
_KNOWN = re.compile(
    rb"(?:sk|pk|rk)-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abpr]-[\w-]{10,}|"
    rb"AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)
_PRIVATE = re.compile(rb"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)


def without_secrets(command: Sequence[str]) -> list[str]:
    """Return the command line with `***` for the value of every argument with a secret's name."""
    shown: list[str] = []
    hide_next = False
    for argument in command:
        name, equals, _ = argument.partition("=")
        secret = _NAME.search(name) is not None
        shown.append("***" if hide_next else f"{name}=***" if secret and equals else argument)
        hide_next = secret and not equals and name.startswith("-")
    return shown


def masked(text: bytes) -> bytes:
    """Return the text with `***` for likely keys; a patch with some cannot be applied unchanged."""
    text = _PRIVATE.sub(rb"\1***\2", text)
    return b"\n".join(_masked_line(line) for line in text.split(b"\n"))


def _masked_line(line: bytes) -> bytes:
    line = _KNOWN.sub(b"***", line)
    for assigned in (_ASSIGNED, _ASSIGNED_NUMBERS):
        line = assigned.sub(rb"\1***", line)
    return line
