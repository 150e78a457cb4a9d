"""No network for anybody, and empty caches."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_hub_but_the_tests_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address that refuses at once, and empty caches."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path / "astune-cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_DATASETS_OFFLINE", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
