"""What every room's tests share: the real small model, converted once into the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def smol_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder; about 20 s where it was never converted before."""
    from astune.engine.model_files import resolve_model

    return resolve_model("builtin:smollm2-135m")


@pytest.fixture(scope="session")
def gsm8k() -> Path:
    """The folder of the real GSM8K rows, which are not part of the project."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "gsm8k"
    if not folder.is_dir():
        pytest.skip(f"GSM8K is not at {folder}; put train.jsonl and test.jsonl of openai/gsm8k there")
    return folder
