"""Weights for servers: what they are asked in which order, and every way in which weights do not arrive, caught."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from token_server import listening, serving
from weights_server import TEXT, BigramEngine, Bigrams, WeightsServer, until

from astune.engine.remote import handover, replicas
from astune.engine.remote.endpoint import Endpoint
from astune.engine.remote.probe import probe
from astune.engine.remote.publication import PublishedWeights
from astune.engine.remote.replicas import Replicas
from astune.engine.remote.served import ServedEngine
from astune.engine.scripted import ScriptedEngine
from astune.schema import Completion, DeadlineExceeded, EngineError, SamplingParams

PARAMS = SamplingParams(max_tokens=4)
PROMPT = [3, 1]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BETWEEN_VISITS_S", 0.01)


class Servers:
    """Stand-ins, and the engine that asks them."""

    def __init__(self, opened: ExitStack, folder: Path, n: int, *, compared: bool = True) -> None:
        self._opened = opened
        self.folder = folder / "weights"
        self.all = [opened.enter_context(listening(WeightsServer(BigramEngine(Bigrams.random(0))))) for _ in range(n)]
        endpoints = [Endpoint(server.url, model="the-model") for server in self.all]
        engines = [ServedEngine(endpoint, max_model_len=64) for endpoint in endpoints]
        self.engine = Replicas(engines, PublishedWeights(self.folder, compared=compared))

    async def ask(self, session: str = "s") -> Completion:
        return await self.engine.generate(PROMPT, PARAMS, session=session)


@pytest.fixture
async def one(tmp_path: Path):
    with ExitStack() as opened:
        servers = Servers(opened, tmp_path, 1)
        yield servers
        await servers.engine.aclose()


def own(weights: Bigrams, completion: Completion) -> list[float]:
    return weights.logprobs([PROMPT[-1], *completion.token_ids])


async def test_weights_are_read_cached_keys_forgotten_and_the_text_said_before_anything_is_sampled(one):
    (server,) = one.all
    server.holds_blocks = 3
    weights = Bigrams.random(0).moved(layers=1.0, head=1.0)
    assert await one.engine.load_weights(weights) == 1
    answer = await one.ask()
    assert server.order == ["take", "forget", "forget", "forget", "forget", "say", "complete"]
    assert answer.weights_version == 1
    assert answer.logprobs == pytest.approx(own(weights, answer))


async def test_a_folder_is_whole_when_it_is_read_and_the_newest_alone_is_kept(one):
    weights = Bigrams.random(0)
    for _ in range(3):
        weights = weights.moved(layers=1.0)
        await one.engine.load_weights(weights)
    (server,) = one.all
    assert [len(files) for files in server.seen] == [1, 2, 2]  # the one before goes when the new one has arrived
    assert not any(name.startswith(".new") for names in server.seen for name in names)
    (kept,) = one.folder.iterdir()
    assert kept.name.startswith("version-000003-")
    assert [file.name for file in kept.iterdir()] == ["model.safetensors"]
    PublishedWeights(one.folder).close()
    assert not one.folder.exists()


async def test_calls_are_over_before_weights_are_handed_over_and_wait_until_they_are(one):
    (server,) = one.all
    server.can_read = asyncio.Event()
    server_loop: list[asyncio.AbstractEventLoop] = []

    class Slow(BigramEngine):
        async def generate(self, prompt_ids, params, *, session):
            server_loop.append(asyncio.get_running_loop())
            await asyncio.sleep(0.05)
            return await super().generate(prompt_ids, params, session=session)

    old, new = Bigrams.random(0), Bigrams.random(0).moved(layers=1.0)
    server.engine = Slow(old)
    early = asyncio.ensure_future(one.ask("a"))
    await until(lambda: bool(server_loop))
    loading = asyncio.ensure_future(one.engine.load_weights(new))
    assert (await early).weights_version == 0
    assert own(old, await early) == pytest.approx((await early).logprobs)
    await until(lambda: "take" in server.order)
    late = asyncio.ensure_future(one.ask("b"))
    await until(lambda: one.engine.stats().waiting == 1)
    server_loop[0].call_soon_threadsafe(server.can_read.set)
    await loading
    assert (await late).weights_version == 1
    assert own(new, await late) == pytest.approx((await late).logprobs)
    assert server.order.index("take") < len(server.order) - 1 - server.order[::-1].index("complete")


def ignores(server: WeightsServer) -> None:
    server.ignores_weights = True


def keeps_head(server: WeightsServer) -> None:
    server.keeps_head = True


@pytest.mark.parametrize("wrong", [ignores, keeps_head])
async def test_weights_that_did_not_arrive_are_seen_by_what_the_server_says(one, wrong: Callable[..., None]):
    await one.engine.load_weights(Bigrams.random(0))
    (server,) = one.all
    wrong(server)
    with pytest.raises(EngineError, match="does not compute with weights version 1") as told:
        await one.engine.load_weights(Bigrams.random(0).moved(layers=1.0, head=1.0))
    assert server.url in told.value.message
    assert "from the trainer's in the mean, and rounding explains 0.05" in told.value.message
    with pytest.raises(EngineError, match="does not compute with weights version 1"):
        await one.ask()


async def test_a_step_smaller_than_rounding_that_did_not_arrive_is_seen_since_the_server_says_exactly_the_same(one):
    weights = Bigrams.random(0)
    await one.engine.load_weights(weights)
    for _ in range(2):
        weights = weights.moved(layers=1e-4)
        assert weights.fingerprint().distance(Bigrams.random(0).logprobs(TEXT)) < 0.05
        await one.engine.load_weights(weights)
    one.all[0].ignores_weights = True
    with pytest.raises(EngineError, match="gives a fixed text exactly the log-probabilities of before"):
        await one.engine.load_weights(weights.moved(layers=1e-4))


async def test_the_same_weights_again_are_no_reason_for_suspicion(one):
    weights = Bigrams.random(0)
    await one.engine.load_weights(weights)
    await one.engine.load_weights(weights)
    assert (await one.ask()).weights_version == 0


async def test_where_somebody_else_compares_nothing_is_said_and_nothing_stops(tmp_path: Path):
    with ExitStack() as opened:
        servers = Servers(opened, tmp_path, 1, compared=False)
        servers.all[0].ignores_weights = True
        await servers.engine.load_weights(Bigrams.random(0).moved(layers=1.0))
        assert servers.all[0].order == ["take", "forget"]
        assert (await servers.ask()).weights_version == 1
        await servers.engine.aclose()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            {"says_error": "there is no safetensors file in X"},
            "did not take weights version 0: there is no safetensors",
        ),
        ({"crashes": True}, "weights version 0 were not taken: .*no such tensor"),
    ],
)
async def test_a_server_that_refuses_weights_is_named_with_its_reason_and_the_folder(one, setting, said):
    vars(one.all[0]).update(setting)
    with pytest.raises(EngineError, match=said) as told:
        await one.engine.load_weights(Bigrams.random(0))
    assert one.all[0].url in told.value.message
    assert str(one.folder) in told.value.hint


async def test_a_cache_that_is_never_empty_ends_at_its_deadline(one, monkeypatch):
    (server,) = one.all
    monkeypatch.setattr(handover, "FORGETS_WITHIN_S", 0.2)
    server.holds_blocks = 1 << 30
    with pytest.raises(DeadlineExceeded, match=r"forgetting what it cached .* took longer than 0\.2 s") as told:
        await one.engine.load_weights(Bigrams.random(0))
    assert "exclusively for one training run" in told.value.hint


async def test_a_worker_that_never_answers_ends_at_its_deadline(one, monkeypatch):
    (server,) = one.all
    monkeypatch.setattr(handover, "READS_WITHIN_S", 0.2)
    server.can_read = asyncio.Event()
    with pytest.raises(DeadlineExceeded, match=rf"{server.url}: reading weights version 0 took longer than 0\.2 s"):
        await one.engine.load_weights(Bigrams.random(0))


async def test_a_disk_that_takes_nothing_is_named(tmp_path: Path):
    (tmp_path / "weights").write_text("a file where the folder should be")
    with ExitStack() as opened:
        servers = Servers(opened, tmp_path, 1)
        with pytest.raises(EngineError, match="weights version 0 cannot be written to"):
            await servers.engine.load_weights(Bigrams.random(0))
        await servers.engine.aclose()


async def test_a_server_that_comes_back_takes_the_weights_of_the_day_before_it_is_asked_anything(tmp_path: Path):
    with ExitStack() as opened, ExitStack() as second_life:
        servers = Servers(opened, tmp_path, 1)
        second = WeightsServer(BigramEngine(Bigrams.random(0)))
        second_life.enter_context(listening(second))
        port = int(second.url.rsplit(":", 1)[1])
        engines = [ServedEngine(Endpoint(server.url, model="m"), max_model_len=64) for server in (*servers.all, second)]
        engine = Replicas(engines, PublishedWeights(tmp_path / "both"))
        weights = Bigrams.random(0)
        await engine.load_weights(weights)
        engine.open_session("here")
        engine.open_session("there")

        second_life.close()
        with pytest.raises(EngineError, match=r"(Connect|Read|RemoteProtocol)Error"):
            await engine.generate(PROMPT, PARAMS, session="there")
        for version in (1, 2):
            weights = weights.moved(layers=1.0)
            assert await engine.load_weights(weights) == version
            assert (await engine.generate(PROMPT, PARAMS, session="here")).weights_version == version
        with pytest.raises(EngineError, match="left out"):  # an episode that it was home to ends, and is run elsewhere
            await engine.generate(PROMPT, PARAMS, session="there")
        engine.close_session("there")

        back = WeightsServer(BigramEngine(Bigrams.random(0)))
        with listening(back, port):
            await until(lambda: "say" in back.order)
            while "complete" not in back.order:
                engine.open_session("new")
                answer = await engine.generate(PROMPT, PARAMS, session="new")
                engine.close_session("new")
            assert answer.weights_version == 2
            assert answer.logprobs == pytest.approx(own(weights, answer))
            assert back.order[:3] == ["take", "forget", "say"]
            await engine.aclose()
        await servers.engine.aclose()


async def test_a_server_that_comes_back_and_computes_with_others_stays_left_out(tmp_path: Path, caplog):
    with ExitStack() as opened:
        servers = Servers(opened, tmp_path, 2)
        second = servers.all[1]
        await servers.engine.load_weights(Bigrams.random(0))
        second.sick = True
        servers.engine.open_session("a")
        servers.engine.open_session("b")
        with pytest.raises(EngineError):
            await servers.ask("b")
        second.ignores_weights = True
        await servers.engine.load_weights(Bigrams.random(0).moved(layers=1.0))
        second.sick = False
        await until(lambda: "stays left out" in caplog.text)
        servers.engine.close_session("a")
        for name in "cde":
            servers.engine.open_session(name)
            assert (await servers.ask(name)).weights_version == 1
        assert second.order.count("complete") == 1
        await servers.engine.aclose()


async def test_weights_wait_for_no_server_and_calls_wait_for_one_that_has_taken_them(one):
    (server,) = one.all
    weights = Bigrams.random(0)
    await one.engine.load_weights(weights)
    server.crashes = server.sick = True
    weights = weights.moved(layers=1.0)
    assert await asyncio.wait_for(one.engine.load_weights(weights), 20) == 1
    asking, before = asyncio.ensure_future(one.ask()), server.visits
    await until(lambda: server.visits >= before + 10)
    assert not asking.done()
    server.crashes = server.sick = False
    answer = await asking
    assert answer.weights_version == 1
    assert answer.logprobs == pytest.approx(own(weights, answer))


async def test_one_that_died_while_weights_are_handed_over_is_left_out_and_one_that_lives_and_refuses_ends_it(tmp_path):
    with ExitStack() as opened:
        servers = Servers(opened, tmp_path, 2)
        first, second = servers.all
        second.crashes = second.sick = True
        assert await servers.engine.load_weights(Bigrams.random(0)) == 0
        for name in "ab":
            servers.engine.open_session(name)
            await servers.ask(name)
        assert "complete" not in second.order
        first.crashes = True
        with pytest.raises(EngineError, match="were not taken"):
            await servers.engine.load_weights(Bigrams.random(0))
        await servers.engine.aclose()


async def test_a_server_that_somebody_else_gives_weights_to_ends_the_run(one):
    await one.engine.load_weights(Bigrams.random(0))
    one.all[0].holds = "version-000007-of-another-run"
    await until(lambda: one.engine.ended is not None)
    with pytest.raises(EngineError, match=r"another process sent weights to .*: it holds version-000007"):
        await one.ask()
    with pytest.raises(EngineError, match="another process"):
        await one.engine.load_weights(Bigrams.random(0))


async def test_a_server_that_was_started_again_between_two_calls_is_given_its_weights_again(one, caplog):
    (server,) = one.all
    weights = Bigrams.random(0).moved(layers=1.0)
    await one.engine.load_weights(weights)
    server.engine, server.holds = BigramEngine(Bigrams.random(0)), ""
    await until(lambda: "answers again" in caplog.text)
    answer = await one.ask()
    assert answer.logprobs == pytest.approx(own(weights, answer))


def encode(text: str) -> list[int]:
    return [1, 2, 3]


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ({}, []),
        ({"protocol": 0}, ["its worker extension is of another version of astune"]),
        ({"workers": 4}, []),
        (
            {"seeds_end_it": True},
            ["on a CPU it ends at requests with a seed, unless it has --no-enable-chunked-prefill"],
        ),
        ({"says_nothing_of_its_cache": True}, ["it does not say whether it forgot what it cached"]),
        ({"leaves_out": {"token_ids"}}, ["it returns no token ids"]),
        ({"leaves_out": {"logprobs"}}, ["it returns no log-probabilities"]),
    ],
    ids=str,
)
async def test_a_probe_says_which_part_of_training_a_server_lacks(setting, missing):
    with listening(WeightsServer(BigramEngine(Bigrams.random(0)))) as server:
        vars(server).update(setting)
        assert (await probe(Endpoint(server.url), encode, weights=True)).lacking(temperature=1.0) == missing


async def test_a_server_without_the_extension_takes_none_and_is_not_asked_where_none_are_given():
    with serving(ScriptedEngine(lambda *_: [7])) as server:
        (missing,) = (await probe(Endpoint(server.url), encode, weights=True)).lacking(temperature=1.0)
        assert missing.startswith("it takes no new weights, as vLLM does with VLLM_SERVER_DEV_MODE=1")
        assert (await probe(Endpoint(server.url), encode)).lacking(temperature=1.0) == []
