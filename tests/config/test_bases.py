"""The models of a run: which policies share one, and what is refused by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astune.config.schema import AstuneConfig

OWN = "builtin:other"


def bases(models: dict[str, Any], model: str = "builtin:smollm2-135m") -> list[tuple[str, list[str], str | None]]:
    config = AstuneConfig.model_validate({"model": {"path": model}, "models": models})
    return [(base.path, [*base.policies], base.whole) for base in config.bases()]


def test_policies_share_a_model_unless_they_train_every_weight() -> None:
    models = {
        "wolf": {"lora": {"rank": 16}},
        "owl": {"path": OWN, "lora": {"rank": 16}},
        "fox": {"path": OWN, "lora": {"rank": 8}},
        "hen": {"path": "builtin:smollm2-135m"},
        "cat": {"path": OWN, "train": False},
    }
    assert bases(models) == [
        ("builtin:smollm2-135m", ["wolf"], None),
        (OWN, ["owl", "fox", "cat"], None),
        ("builtin:smollm2-135m", ["hen"], "hen"),
    ]


def test_one_policy_is_one_base(tmp_path: Path) -> None:
    assert bases({}) == [("builtin:smollm2-135m", [""], "")]
    assert bases({"default": {"path": OWN}}) == [(OWN, ["default"], "default")], "nobody asks for model.path"
    assert len(bases({"default": {"path": OWN}, "judge": {"train": False}})) == 2
    (tmp_path / "adapter_config.json").write_text("{}")
    assert bases({"wolf": {"path": str(tmp_path), "lora": {"rank": 2}}}) == [("builtin:smollm2-135m", ["wolf"], None)]


def test_two_names_of_one_folder_are_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    models = {"wolf": {"lora": {"rank": 2}, "path": "model"}, "fox": {"train": False, "path": str(tmp_path / "model")}}
    assert bases(models, "./model") == [("./model", ["wolf", "fox"], None)]


@pytest.mark.parametrize(
    ("models", "refusal"),
    [
        ({"wolf": {}}, r"models\.wolf is trained but has no adapter: set astune\.models\.wolf\.lora\.rank"),
        ({"wolf": {"path": OWN, "adapter": "x"}}, r"models\.wolf is trained but has no adapter"),
        ({"wolf": {"adapter": "x", "lora": {"rank": 2}}}, r"models\.wolf\.path names no model"),
    ],
)
def test_policies_that_contradict_themselves_are_refused(models: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        bases(models)


def test_a_league_of_whole_models_is_refused_by_name() -> None:
    models = {"wolf": {"lora": {"rank": 2}}, "fox": {"path": OWN}}
    with pytest.raises(ValueError, match=r"astune\.models\.fox trains every weight: a league keeps earlier"):
        AstuneConfig.model_validate({"models": models, "trainer": {"league": {"share": 0.5}}})
