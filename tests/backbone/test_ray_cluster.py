from __future__ import annotations

import os

import orjson
import pytest

from astune.backbone.cluster import ray_cluster


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.setenv(name, "")


def test_a_ray_of_ones_own_is_guarded_and_small_without_a_gpu() -> None:
    ray_cluster.prepare(["PATH"])
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert not os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"]
    assert ray_cluster.address() == "local"
    assert ray_cluster.own_host() == "127.0.0.1"
    assert ray_cluster.resources(on_cpu=True)["num_gpus"] == 2
    assert ray_cluster.resources(on_cpu=False) == {}


def test_processes_on_a_cluster_that_is_there_are_given_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.setenv("ASTUNE_TEST", "needed")
    ray_cluster.prepare(["ASTUNE_TEST", "ASTUNE_NOT_SET"])
    told = orjson.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
    assert told == {"runtime_env": {"env_vars": {"ASTUNE_TEST": "needed"}}}
    assert not os.environ["RAY_AUTH_TOKEN"]
    assert ray_cluster.resources(on_cpu=True) == {}


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "ray://127.0.0.1:10001"])
def test_the_run_server_listens_where_the_cluster_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert ray_cluster.own_host() == "127.0.0.1"
