"""Runs whose policies have models of their own: planned, trained, resumed, measured, exported, and what is refused."""

from __future__ import annotations

import filecmp
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from astune_command import astune
from safetensors.torch import load_file
from test_several_policies import configure, run_in

from astune.app.evaluation import described_model, with_model
from astune.backbone.bases import folders, require_bases
from astune.backbone.memory import ModelShape, estimates
from astune.config.schema import AstuneConfig
from astune.engine.adapters import Factors, policies_in, write_adapter
from astune.runs import RunDirectory, balance_of
from astune.schema import ConfigError, RunStoreError


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def of(model: Path, models: dict[str, Any], **more: Any) -> AstuneConfig:
    return AstuneConfig.model_validate({"model": {"path": str(model), "dtype": "float32"}, "models": models, **more})


@pytest.mark.slow
def test_a_whole_model_and_adapters_on_two_bases_are_trained_resumed_measured_and_exported(
    tmp_path: Path, tiny_folder: Path
) -> None:
    other = copied(tiny_folder, tmp_path / "other")
    models = {
        "wolf": {"targets": ["werewolf"], "path": str(other), "optim": {"lr": 1e-2, "warmup_steps": 0}},
        "village": {"path": str(other), "lora": {"rank": 4}},
        "judge": {"train": False, "path": str(other)},
    }
    latest: list[Path] = []
    for name in ("whole", "broken"):
        folder = tmp_path / name
        configure(folder, tiny_folder)
        settings = yaml.safe_load((folder / "conf.yaml").read_text())
        settings["astune"]["models"] = models
        del settings["astune"]["trainer"]["league"]
        (folder / "conf.yaml").write_text(yaml.safe_dump(settings))
        if name == "broken":
            (folder / "fuse").write_text(str(4 + 2 * 16 + 5))
            astune(folder, "--conf", "conf.yaml", status=-signal.SIGKILL)
            (folder / "fuse").unlink()
            astune(folder, "--resume", str(run_in(folder).path))
        else:
            said = astune(folder, "--conf", "conf.yaml", "--dry-run")
            assert f"every weight of wolf, from {other}" in said
            assert f"the adapters judge (frozen), village of {other}" in said
            astune(folder, "--conf", "conf.yaml")
        checkpoint = run_in(folder).checkpoints.latest()
        assert checkpoint is not None
        assert policies_in(checkpoint.model) == ["village", "wolf"]
        latest.append(checkpoint.path)
    for file in ("wolf/model.safetensors", "village/adapter_model.safetensors"):
        whole, resumed = (path / "model" / file for path in latest)
        assert filecmp.cmp(whole, resumed, shallow=False), "a killed run ends as if it had not been"
    folder, run = tmp_path / "whole", run_in(tmp_path / "whole")
    for line in run.metrics():
        if line.kind == "train":
            assert balance_of(line.metrics).difference == 0
            assert line.metrics["train/policy/wolf/trained_tokens"] > 0
            assert line.metrics["train/logprob_diff_max"] < 1e-3, "the engine samples with what the trainer trains"
    assert "4 tasks" in astune(folder, "eval", "conf.yaml", "--model", str(run.path))
    for name in ("wolf", "village"):
        astune(folder, "export", str(latest[0]), "--to", name, "--policy", name)
        assert load_file(folder / name / "model.safetensors").keys() == load_file(other / "model.safetensors").keys()
        assert json.loads((folder / name / "config.json").read_text())["model_type"] == "llama"
    assert filecmp.cmp(folder / "wolf/model.safetensors", latest[0] / "model/wolf/model.safetensors", shallow=False)
    assert "has the policies village, wolf" in astune(folder, "chat", str(run.path), "--message", "hi", status=1)


@pytest.mark.slow
def test_models_of_another_tokenizer_or_template_are_refused_by_name(tiny_folder: Path, tmp_path: Path) -> None:
    models = {"wolf": {"path": str(copied(tiny_folder, tmp_path / "same"))}}
    assert [base.whole for base, _ in folders(of(tiny_folder, models))] == [None, "wolf"]
    other = copied(tiny_folder, tmp_path / "other")
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match=r"astune\.models\.wolf\.path is .*other, whose chat template is other than"):
        require_bases(of(tiny_folder, {"wolf": {"path": str(other)}}))
    tokenizer = json.loads((tmp_path / "same/tokenizer.json").read_text())
    tokenizer["model"]["merges"].pop()
    (tmp_path / "same/tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"models\.wolf\.path is .*same, whose tokenizer is other than that of model"):
        require_bases(of(tiny_folder, models))


def test_a_model_that_is_not_there_is_named_by_its_key(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"astune\.models\.wolf\.path: .* is no folder, no \.gguf file and no hub id"):
        require_bases(of(tiny_folder, {"wolf": {"path": str(tmp_path / "gone"), "lora": {"rank": 2}}}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"astune\.models\.wolf\.path: .*empty has no config\.json"):
        require_bases(of(tiny_folder, {"wolf": {"path": str(tmp_path / "empty")}}))


def test_memory_counts_each_base_once(tiny_folder: Path, tmp_path: Path) -> None:
    path = str(copied(tiny_folder, tmp_path / "other"))
    shape = ModelShape.of(json.loads((tiny_folder / "config.json").read_text()))
    assert shape is not None

    def weights(models: dict[str, Any]) -> dict[str, float]:
        engine = {"kv_cache_gb": 1e-5}
        (found,) = estimates(of(tiny_folder, models, engine=engine), shape, on_gpu=True, in_bfloat16=False)
        return found.parts

    rank = {"lora": {"rank": 2}}
    one = weights({"wolf": {"path": path}})
    two = weights({"wolf": {"path": path}, "fox": {"path": path}})
    assert two["weights"] == 2 * one["weights"] == 2 * 4 * shape.parameters
    assert two["gradients and AdamW"] == 2 * one["gradients and AdamW"] == 2 * 12 * shape.parameters
    shared = weights({"wolf": {"path": path, **rank}, "fox": {"path": path, **rank}})
    assert shared["weights"] == 4 * (shape.parameters + 2 * shape.adapters(2))
    assert shared["engine"] == 2 * 4 * shape.parameters, "beside it the model of the agents of no policy"
    frozen = weights({"wolf": rank, "old": {"train": False, "path": path}})
    assert frozen["weights"] == 4 * (shape.parameters + shape.adapters(2))
    assert frozen["engine"] == shared["engine"]


def test_a_run_is_measured_on_the_bases_that_its_policies_had(tiny_folder: Path, tmp_path: Path) -> None:
    own = copied(tiny_folder, tmp_path / "own")
    factors = {"model.layers.0.mlp.up_proj": Factors(torch.zeros(2, 64), torch.zeros(128, 2), 1.0)}
    write_adapter(tmp_path / "run/village", factors, base=str(own))
    copied(tiny_folder, tmp_path / "run/wolf")
    models = {"wolf": {"path": str(own)}, "village": {"path": str(own), "lora": {"rank": 2}}}
    measured = with_model(of(tiny_folder, models), tmp_path / "run")
    assert measured.models["wolf"].base == str(tmp_path / "run/wolf")
    assert (measured.models["village"].base, measured.models["village"].start) == (
        str(own),
        str(tmp_path / "run/village"),
    )
    elsewhere = models | {"village": models["village"] | {"path": str(tiny_folder)}}
    with pytest.raises(ConfigError, match=rf"is an adapter on {own}, and models\.village\.path is {tiny_folder}"):
        with_model(of(tiny_folder, elsewhere), tmp_path / "run")


def test_a_named_checkpoint_is_measured_and_not_the_best_of_its_run(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    factors = {"model.layers.0.mlp.up_proj": Factors(torch.zeros(2, 64), torch.zeros(128, 2), 1.0)}

    def write(folder: Path) -> None:
        write_adapter(folder / "wolf", factors, base=str(tiny_folder))

    with RunDirectory.create(Path("launcher_record"), "game") as run:
        best = run.checkpoints.save(2, model=write, score=0.75).model.resolve()
        last = run.checkpoints.save(4, model=write, state=lambda folder: None, score=0.5).model.resolve()
    config = of(tiny_folder, {"wolf": {"lora": {"rank": 2}}})
    relative = run.path.resolve().relative_to((tmp_path / "launcher_record").resolve())
    for named, model in (
        (run.path, best),
        ("game", best),
        (last, last),
        (last.parent, last),
        (last / "wolf", last),
        (best.parent, best),
        (relative / "checkpoints/step-000004", last),
    ):
        start = with_model(config, named).models["wolf"].start
        assert start is not None
        assert Path(start).resolve() == model / "wolf", named


def test_a_model_that_is_not_as_it_was_saved_is_refused_and_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with RunDirectory.create(Path("launcher_record"), "game") as run:
        with pytest.raises(RunStoreError, match="has no checkpoint"):
            with_model(AstuneConfig(), run.path)
        saved = run.checkpoints.save(2, model=lambda folder: (folder / "config.json").write_text("{}"), score=0.75)
    assert with_model(AstuneConfig(), saved.model).model.path == str(saved.model)
    (saved.model / "config.json").write_text("[]")
    for named in (run.path, "game", saved.path, saved.model):
        with pytest.raises(RunStoreError, match="is damaged"):
            with_model(AstuneConfig(), named)


def test_an_evaluation_says_what_was_measured_of_several_policies(tiny_folder: Path, tmp_path: Path) -> None:
    own = copied(tiny_folder, tmp_path / "own")
    factors = {"model.layers.0.mlp.up_proj": Factors(torch.zeros(2, 64), torch.zeros(128, 2), 1.0)}
    for name in ("wolf", "village"):
        write_adapter(tmp_path / "run" / name, factors, base=str(tiny_folder))
    rank = {"lora": {"rank": 2}}
    models = {"wolf": rank, "village": rank, "old": {"train": False, "path": str(own)}}
    config = with_model(of(tiny_folder, models), tmp_path / "run")
    assert described_model(config) == f"{tiny_folder}, wolf and village of {tmp_path}/run, old of {own}"
    assert described_model(of(tiny_folder, models | {"old": {"train": False}})) == str(tiny_folder)


def test_an_adapter_that_names_another_model_is_reported_before_anything_is_loaded(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    factors = {"model.layers.0.mlp.up_proj": Factors(torch.zeros(2, 64), torch.zeros(128, 2), 1.0)}
    for name, base in (("own", str(tiny_folder)), ("other", "some/other-model"), ("unnamed", "")):
        write_adapter(tmp_path / name, factors, base=base)
    frozen = {name: {"train": False, "path": str(tmp_path / name)} for name in ("own", "other", "unnamed")}
    require_bases(of(tiny_folder, {"wolf": {"lora": {"rank": 2}}} | frozen))
    (warning,) = (record.getMessage() for record in caplog.records)
    begins = f"astune.models.other begins with the adapter in {tmp_path}/other, which names some/other-model"
    assert warning.startswith(f"{begins} as its model, and is put on {tiny_folder}")
