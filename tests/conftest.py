"""What every room's tests share: the real small model, converted once into the user's cache."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
import uvicorn.server
from emulated import EMULATED, emulate
from examples import FAST_TIER, examples, some
from hypothesis import settings
from warm_commands import STAND_IN, keep_environment, start_warm_process

from astune.cli import let_openmp_spin_briefly

if TYPE_CHECKING:
    from hub_mirror import Mirror

    from astune.renderers import Renderer

let_openmp_spin_briefly()
ssl.create_default_context = cache(ssl.create_default_context)  # reading the authorities takes an HTTP client 26 ms
typer.main.get_command = cache(typer.main.get_command)  # and building the commands takes one of ours 30 ms
prompt_sleep = lambda seconds: asyncio.sleep(min(seconds, 0.02))  # noqa: E731
uvicorn.server.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": prompt_sleep})  # a server's end takes 150 ms
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_STATE = tempfile.TemporaryDirectory(prefix="astune-tests-")  # the user's record of processes is not ours
os.environ["XDG_STATE_HOME"] = _STATE.name
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2**33
keep_environment()
if EMULATED in os.environ:
    emulate(os.environ[EMULATED])


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" in str(config.getoption("markexpr")):
        os.environ[FAST_TIER] = "1"
        _write_into_memory(config)
    settings.register_profile("astune", deadline=None, max_examples=examples(100))  # a busy machine is no defect
    settings.load_profile("astune")


def _write_into_memory(config: pytest.Config) -> None:
    """Keep files of tests in memory where there is room, until they end: a recorded run waits 0.15 s for a disk."""
    if config.option.basetemp is None and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
        folder = tempfile.TemporaryDirectory(prefix="astune-tests-", dir=_MEMORY, ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        config.option.basetemp = Path(folder.name) / "t"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Fork the workers from a process that has imported what most tests need, which takes 6 s of CPU."""
    if sys.platform == "linux":
        start_warm_process()
        for spec in specs:
            spec.python = STAND_IN


def pytest_collection_finish() -> None:
    """Keep torch and what else collecting imported out of every collection of garbage: a tenth of the tests' time."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def freed_memory_goes_back() -> Iterator[None]:
    """An engine in this process keeps what it frees: over all modules 7 GB in each worker."""
    yield
    if (allocator := sys.modules.get("astune.engine.local.allocator")) is not None:
        allocator.give_back_freed_memory()


@pytest.fixture(params=some([[], ["-mno-avx512f"]], 1), ids=["widest", "AVX2"])
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine's compiled kernels for vectors of one width: gcc makes different code of each."""
    from astune.engine import compiled
    from astune.engine.local import kernels, products, softmax

    if request.param and "avx512f" not in compiled.processor():
        pytest.skip("the widest vectors here are AVX2's")
    monkeypatch.setattr(compiled, "_FLAGS", [*compiled._FLAGS, *request.param])
    functions = (products._functions, kernels._kernels, softmax._kernels)
    for each in functions:
        each.cache_clear()
    yield
    for each in functions:
        each.cache_clear()


@pytest.fixture(scope="session")
def smol_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder; about 20 s where it was never converted before."""
    from astune.engine.model_files import resolve_model

    return resolve_model("builtin:smollm2-135m")


@pytest.fixture(scope="session")
def renderer(smol_folder: Path) -> Renderer:
    """The small model's renderer; tests leave it as it is."""
    from astune.renderers import load_renderer

    return load_renderer(smol_folder)


@pytest.fixture(scope="session")
def tokenizer(smol_folder: Path) -> Any:
    """The small model's tokenizer as transformers has it; tests leave it as it is."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smol_folder)


@pytest.fixture(scope="session")
def gsm8k() -> Path:
    """The folder of the real GSM8K rows, which are not part of the project."""
    beside = Path(__file__).parents[2] / "shared" / "data" / "gsm8k"
    folder = Path(os.environ.get("ASTUNE_GSM8K", beside))
    if not (folder / "train.jsonl").is_file():
        pytest.skip(f"GSM8K is not at {folder}; put train.jsonl and test.jsonl there, or set ASTUNE_GSM8K")
    return folder


@pytest.fixture(scope="session")
def compat() -> Path:
    """The folder of what the project's first documents promise, which is not part of the project."""
    beside = Path(__file__).parents[2] / "shared" / "compat"
    folder = Path(os.environ.get("ASTUNE_COMPAT", beside))
    if not (folder / "commands.md").is_file():
        pytest.skip(f"the first documents' files are not at {folder}; set ASTUNE_COMPAT to their folder")
    return folder


@pytest.fixture(scope="session")
def gsm8k_folder(gsm8k: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real rows in the hub's layout, as `dataset_path` reads them without a network."""
    folder = tmp_path_factory.mktemp("gsm8k")
    (folder / "main").mkdir()
    for split in ("train", "test"):
        shutil.copy(gsm8k / f"{split}.jsonl", folder / "main")
    return folder


@pytest.fixture(scope="session")
def gsm8k_files(gsm8k: Path) -> dict[str, bytes]:
    """The files of openai/gsm8k on the hub, by name, with the real rows."""
    from dataset_making import CARD, parquet_of

    rows = {split: [json.loads(line) for line in (gsm8k / f"{split}.jsonl").open()] for split in ("train", "test")}
    return {
        "README.md": CARD.encode(),
        "main/train-00000-of-00001.parquet": parquet_of(rows["train"]),
        "main/test-00000-of-00001.parquet": parquet_of(rows["test"]),
        "socratic/train-00000-of-00001.parquet": parquet_of(rows["train"][:10]),
    }


@pytest.fixture
def gsm8k_hub(gsm8k_files: dict[str, bytes]) -> Iterator[Mirror]:
    """A hub on this machine that has openai/gsm8k."""
    from hub_mirror import mirror

    with mirror(openai__gsm8k=gsm8k_files) as hub:
        yield hub


@pytest.fixture(scope="session")
def appworld_python() -> Path:
    """AppWorld's own Python, where it was made."""
    python = Path(__file__).parents[1] / ".venv-appworld" / "bin" / "python"
    if not python.is_file():
        pytest.skip("there is no .venv-appworld; `make appworld` makes it in about a minute")
    return python


@pytest.fixture(scope="session")
def appworld_root(appworld_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `data` of a small world, made from the installed package; about 10 s."""
    root = tmp_path_factory.mktemp("appworld")
    script = Path(__file__).parent / "env_service" / "make_small_appworld.py"
    subprocess.run([appworld_python, script, root], check=True, capture_output=True, cwd=root)
    return root


@pytest.fixture(scope="session")
def tiny_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with random weights and the real tokenizer: everything runs, nothing is meant."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
