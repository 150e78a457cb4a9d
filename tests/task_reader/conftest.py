"""The real GSM8K as the hub lays it out, made from the rows that a machine has; and no network for anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dataset_making import CARD, parquet_of


@pytest.fixture(scope="session")
def gsm8k_files(gsm8k: Path) -> dict[str, bytes]:
    """The files of openai/gsm8k on the hub, by name, with the real rows."""
    rows = {split: [json.loads(line) for line in (gsm8k / f"{split}.jsonl").open()] for split in ("train", "test")}
    return {
        "README.md": CARD.encode(),
        "main/train-00000-of-00001.parquet": parquet_of(rows["train"]),
        "main/test-00000-of-00001.parquet": parquet_of(rows["test"]),
        "socratic/train-00000-of-00001.parquet": parquet_of(rows["train"][:10]),
    }


@pytest.fixture(autouse=True)
def _no_hub_but_the_tests_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address that refuses at once, and empty caches."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path / "astune-cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_DATASETS_OFFLINE", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
