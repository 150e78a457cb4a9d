"""Engines behind HTTP: exact tokens, named failures, several servers, and endpoints that give text only."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import ExitStack
from dataclasses import replace

import pytest
from examples import some
from llguidance import LLMatcher, LLTokenizer
from starlette.responses import JSONResponse
from token_server import TokenServer, serving
from weights_server import until

from astune.context_tracker import ContextTracker
from astune.engine.base import ignore_token
from astune.engine.remote import replicas
from astune.engine.remote.endpoint import Endpoint, key_from
from astune.engine.remote.probe import probe
from astune.engine.remote.replicas import Replicas
from astune.engine.remote.served import ServedEngine
from astune.engine.remote.text_endpoint import TextEndpointEngine
from astune.engine.scripted import ScriptedEngine
from astune.engine.tokenizer import ModelTokenizer
from astune.renderers.text_renderer import TextRenderer
from astune.schema import ConfigError, ContextOverflow, EngineError, Grammar, SamplingParams

PROMPT = [1, 2, 3, 4]
LETTER = {"type": "object", "properties": {"letter": {"type": "string", "pattern": r"^\\b/$"}}, "required": ["letter"]}
PARAMS = SamplingParams(max_tokens=6, temperature=0.7, stop_token_ids=(2,), seed=11)


@pytest.fixture
def script():
    """A server whose every answer is the tokens 7, 8 and its stop token."""
    with serving(ScriptedEngine(lambda prompt, params, session: [7, 8])) as server:
        yield server


def engine_of(server: TokenServer, **endpoint: str) -> ServedEngine:
    return ServedEngine(Endpoint(server.url, **{"model": "the-model"} | endpoint), max_model_len=64)


@pytest.mark.slow
async def test_what_a_server_samples_comes_back_token_for_token(tiny):
    here = await tiny.generate(PROMPT, PARAMS, session="here")
    with serving(tiny) as server:
        engine = engine_of(server)
        there = await engine.generate(PROMPT, PARAMS, session="there")
        await engine.aclose()
    assert (there.token_ids, there.finish_reason) == (here.token_ids, here.finish_reason)
    assert there.logprobs == pytest.approx(here.logprobs, abs=1e-5)
    assert engine.stats().sampled_tokens == len(here.token_ids)
    assert engine.stats().running == 0


async def test_a_stream_shows_every_token_and_ends_in_the_same_completion(script):
    engine = engine_of(script)
    whole = await engine.generate(PROMPT, PARAMS, session="s")
    shown: list[int] = []
    assert await engine.stream(PROMPT, PARAMS, session="s", on_token=lambda token: bool(shown.append(token))) == whole
    assert shown == whole.token_ids == [7, 8, 2]
    assert engine.stats().sampled_tokens == 6


async def test_a_stream_ends_where_its_reader_says_so(script):
    engine = engine_of(script)
    ended = await engine.stream(PROMPT, PARAMS, session="s", on_token=lambda token: token == 8)
    assert (ended.token_ids, len(ended.logprobs), ended.finish_reason) == ([7, 8], 2, "stop")
    assert engine.stats().running == 0


async def test_a_busy_server_is_asked_again_for_a_stream_and_a_refusal_is_named(script):
    busy = JSONResponse({"error": {"message": "busy"}}, 429, headers={"Retry-After": "0.01"})
    script.refuses = [busy, JSONResponse({"error": {"message": "no such thing"}}, 400)]
    with pytest.raises(EngineError, match="answered 400: no such thing"):
        await engine_of(script).stream(PROMPT, PARAMS, session="s", on_token=ignore_token)


@pytest.mark.parametrize(
    ("left_out", "named"), [({"token_ids"}, "token ids"), ({"logprobs"}, "log-probabilities")], ids=str
)
async def test_a_stream_without_what_training_needs_is_an_error_that_names_it(script, left_out, named):
    script.leaves_out = left_out
    with pytest.raises(EngineError, match=f"answered without {named}"):
        await engine_of(script).stream(PROMPT, PARAMS, session="s", on_token=ignore_token)


async def test_the_request_says_all_that_was_asked(script):
    engine = engine_of(script, api_key="secret")
    await engine.generate(PROMPT, PARAMS, session="s")
    (asked,) = script.asked
    assert asked["prompt"] == PROMPT
    assert {name: asked[name] for name in ("max_tokens", "temperature", "seed", "stop_token_ids", "model")} == {
        "max_tokens": 6,
        "temperature": 0.7,
        "seed": 11,
        "stop_token_ids": [2],
        "model": "the-model",
    }
    assert script.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("grammar", "fits"),
    some(
        [
            (Grammar("json_schema", json.dumps(LETTER)), [r'{"letter": "\\b/"}']),
            (Grammar("regex", "a/b\\/[\n/]"), ["a/b/\n", "a/b//"]),
            (Grammar("lark", 'start: "a" /b+/'), ["ab", "abb"]),
        ],
        1,
    ),
)
async def test_every_grammar_is_sent_in_the_notation_of_one_backend(script, smol_folder, grammar, fits):
    await engine_of(script).generate(PROMPT, replace(PARAMS, grammar=grammar), session="s")
    text = script.asked[0]["structured_outputs"]["grammar"]
    assert text.startswith("%llguidance {}\n")
    tokenizer = LLTokenizer(ModelTokenizer.load(smol_folder).backend.to_str())
    for one in fits:
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(text))
        assert matcher.consume_tokens(tokenizer.tokenize_str(one)), one
        assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("left_out", "named"), [({"token_ids"}, "token ids"), ({"logprobs"}, "log-probabilities")], ids=str
)
async def test_an_answer_without_what_training_needs_is_an_error_that_names_it(script, left_out, named):
    script.leaves_out = left_out
    with pytest.raises(EngineError, match=f"answered without {named}"):
        await engine_of(script).generate(PROMPT, PARAMS, session="s")


async def test_a_busy_server_is_asked_again(script):
    script.refuses = [JSONResponse({"error": {"message": "busy"}}, 429, headers={"Retry-After": "0.01"})] * 2
    assert (await engine_of(script).generate(PROMPT, PARAMS, session="s")).token_ids == [7, 8, 2]


async def test_a_wrong_key_is_told_with_the_setting_that_holds_it(script):
    script.refuses = [JSONResponse({"error": {"message": "who are you?"}}, 401)]
    with pytest.raises(EngineError, match=r"401: who are you\?") as told:
        await engine_of(script).generate(PROMPT, PARAMS, session="s")
    assert "engine.api_key_env" in told.value.hint


async def test_a_server_that_is_not_there_is_named():
    engine = ServedEngine(Endpoint("http://127.0.0.1:9"), max_model_len=64)
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9/v1/completions: ConnectError"):
        await engine.generate(PROMPT, PARAMS, session="s")


def test_an_address_must_be_one_and_a_key_be_set(monkeypatch):
    with pytest.raises(ConfigError, match="is no address"):
        Endpoint("localhost:8000")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY, which is not set"):
        key_from("NO_SUCH_KEY")
    assert key_from("") is None


async def test_the_model_is_the_first_that_is_served_where_none_is_named(script):
    assert await Endpoint(f"{script.url}/v1/").choose_model() == "the-model"
    assert await Endpoint(script.url, model="mine").choose_model() == "mine"


async def test_a_probe_finds_out_what_a_server_gives(script):
    def encode(text: str) -> list[int]:
        return [1, 2, 3]

    found = await probe(Endpoint(script.url), encode)
    assert found.exact
    assert found.lacking(temperature=1.0) == []
    assert (await probe(Endpoint(script.url), lambda text: [9])).lacking(temperature=1.0) == [
        "its tokenizer is not that of model.path"
    ]
    script.leaves_out = {"token_ids", "logprobs"}
    assert (await probe(Endpoint(script.url), encode)).lacking(temperature=1.0) == [
        "it returns no token ids",
        "it returns no log-probabilities",
    ]
    script.engine = None
    assert not (await probe(Endpoint(script.url), encode)).exact
    with pytest.raises(EngineError):
        await probe(Endpoint("http://127.0.0.1:9"), encode)


async def test_episodes_are_spread_and_each_stays_where_it_is():
    with ExitStack() as open_servers:
        servers = [open_servers.enter_context(serving(ScriptedEngine(lambda *_: [7]))) for _ in range(2)]
        engine = Replicas([engine_of(server) for server in servers])
        for name in "abcd":
            engine.open_session(name)
        for _ in range(3):
            for name in "abcd":
                await engine.generate([ord(name)], PARAMS, session=name)
        seen = [sorted({asked["prompt"][0] for asked in server.asked}) for server in servers]
        assert [len(names) for names in seen] == [2, 2]
        assert sorted(seen[0] + seen[1]) == [ord(name) for name in "abcd"]
        assert engine.stats().sampled_tokens == 12 * 2
        await engine.aclose()


async def test_a_server_that_dies_is_left_out_until_it_answers_again(monkeypatch):
    monkeypatch.setattr(replicas, "BETWEEN_VISITS_S", 0.01)
    with ExitStack() as open_servers:
        servers = [open_servers.enter_context(serving(ScriptedEngine(lambda *_: [7]))) for _ in range(2)]
        engine = Replicas([engine_of(server) for server in servers])
        engine.open_session("a")
        servers[0].sick = True
        with pytest.raises(EngineError):
            await engine.generate(PROMPT, PARAMS, session="a")
        engine.close_session("a")
        for name in "bcd":
            engine.open_session(name)
            await engine.generate(PROMPT, PARAMS, session=name)
        assert len(servers[1].asked) == 3
        servers[0].sick = False
        async with asyncio.timeout(30):
            while True:
                engine.open_session("e")
                await engine.generate(PROMPT, PARAMS, session="e")
                engine.close_session("e")
                if len(servers[0].asked) > 1:
                    break
        await engine.aclose()


async def test_while_all_servers_are_away_calls_wait_for_one(script, monkeypatch):
    monkeypatch.setattr(replicas, "BETWEEN_VISITS_S", 0.01)
    engine = Replicas([engine_of(script)])
    script.sick = True
    with pytest.raises(EngineError):
        await engine.generate(PROMPT, PARAMS, session="first")
    waiting, before = asyncio.ensure_future(engine.generate(PROMPT, PARAMS, session="second")), script.visits
    await until(lambda: script.visits >= before + 20)
    assert not waiting.done()
    script.sick = False
    assert (await asyncio.wait_for(waiting, 30)).token_ids == [7, 8, 2]
    await engine.aclose()


async def test_a_run_without_servers_does_not_wait_for_ever(script, monkeypatch):
    monkeypatch.setattr(replicas, "BETWEEN_VISITS_S", 0.01)
    monkeypatch.setattr(replicas, "BACK_WITHIN_S", 0.1)
    engine = Replicas([engine_of(script)])
    script.sick = True
    for _ in range(2):
        with pytest.raises(EngineError) as told:
            await engine.generate(PROMPT, PARAMS, session="s")
    assert f"none of the servers answered for 0 minutes: {script.url}" in told.value.message
    await engine.aclose()


async def test_a_server_without_a_page_of_its_health_is_not_left_out_for_that(script):
    assert await Endpoint(f"{script.url}/somewhere/v9").answers()  # 404
    script.sick = True
    assert not await Endpoint(script.url).answers()


@pytest.mark.parametrize(
    ("more", "said"), [({"finish_reason": "abort"}, "broke an answer off: abort"), (None, "with a completion")]
)
async def test_an_answer_that_is_none_is_an_error(script, monkeypatch, more, said):
    if more is None:
        script.refuses = [JSONResponse(["what?"])]
    else:
        monkeypatch.setattr(script, "more", lambda body: more)
    with pytest.raises(EngineError, match=said):
        await engine_of(script).generate(PROMPT, PARAMS, session="s")


def told(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status)


async def test_an_endpoint_that_has_no_such_model_is_told_apart_from_one_that_is_not_there():
    with serving(None) as server:
        engine = TextEndpointEngine(Endpoint(server.url, model="gpt-5"))
        server.refuses = [told(404, "no such model")]
        with pytest.raises(EngineError, match="has no model gpt-5; it has the-model"):
            await engine.prove()
        await engine.aclose()


async def test_an_endpoint_is_asked_in_its_own_word_for_the_length_of_an_answer():
    with serving(None) as server:
        engine = TextEndpointEngine(Endpoint(server.url, model="the-model"))
        server.refuses = [told(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")]
        server.said = [{"content": "yes"}]
        await engine.prove()
        await engine.aclose()
    assert [sorted(key for key in asked if key.startswith("max")) for asked in server.asked] == [
        ["max_tokens"],
        ["max_completion_tokens"],
    ]


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


async def test_an_endpoint_of_text_is_asked_in_messages_and_recorded_in_characters():
    with serving(None) as server:
        call = {"id": "their-id", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        server.said = [{"content": None, "tool_calls": [call]}, {"content": "It is\nred."}]
        engine = TextEndpointEngine(Endpoint(server.url, model="m"))
        tracker = ContextTracker(TextRenderer(), 1 << 40)
        messages = [{"role": "user", "content": "What colour?"}]
        answers = []
        for _ in range(2):
            pending = tracker.prepare(messages, [TOOL], agent="agent", trainable=True)
            completion = await engine.generate(pending.prompt_ids, PARAMS, session="s")
            assert all(map(math.isnan, completion.logprobs))
            answers.append(tracker.commit(pending, completion))
            messages = [*messages, answers[-1]]
            if answers[-1].get("tool_calls"):
                result = {"role": "tool", "tool_call_id": answers[-1]["tool_calls"][0]["id"], "content": "red"}
                messages.append(result)
        await engine.aclose()
    assert answers[1]["content"] == "It is\nred."
    first, second = server.asked
    assert first["messages"] == [{"role": "user", "content": "What colour?"}]
    assert first["tools"] == second["tools"] == [TOOL]
    asked, result = second["messages"][1:]
    assert asked["tool_calls"][0]["id"] == result["tool_call_id"] == answers[0]["tool_calls"][0]["id"]
    assert len(tracker.forest.timelines()) == 1
    assert "It is\\nred." in TextRenderer().decode(tracker.forest.timelines()[0].token_ids)


async def test_a_call_of_an_endpoint_whose_arguments_are_no_object_is_malformed():
    with serving(None) as server:
        broken = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"city": "Ro'}}
        whole = {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"city": "Rome"}'}}
        server.said = [{"content": "I look.", "tool_calls": [broken, whole]}]
        engine = TextEndpointEngine(Endpoint(server.url, model="m"))
        tracker = ContextTracker(TextRenderer(), 1 << 40)
        pending = tracker.prepare([{"role": "user", "content": "Go."}], [TOOL], agent="agent", trainable=True)
        answer = tracker.commit(pending, await engine.generate(pending.prompt_ids, PARAMS, session="s"))
        await engine.aclose()
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == ['{"city": "Rome"}']
    text = json.dumps({"name": "look", "arguments": '{"city": "Ro'})
    assert answer["content"] == f"I look.\n{text}"
    assert tracker.forest.nodes[-1].malformed_calls == [text]


async def test_a_conversation_that_an_endpoint_refuses_as_too_long_is_an_overflow():
    with serving(None) as server:
        server.refuses = [JSONResponse({"error": {"message": "maximum context length is 8192 tokens"}}, 400)]
        engine = TextEndpointEngine(Endpoint(server.url, model="m"))
        rendered = TextRenderer().render([{"role": "user", "content": "long"}], [])
        with pytest.raises(ContextOverflow, match="maximum context length"):
            await engine.generate(rendered.token_ids, PARAMS, session="s")
        await engine.aclose()


async def test_a_forced_call_and_a_schema_are_passed_on_in_the_endpoints_words():
    with serving(None) as server:
        server.said = [{"content": "{}"}, {"content": ""}]
        engine = TextEndpointEngine(Endpoint(server.url, model="m"))
        tracker = ContextTracker(TextRenderer(), 1 << 40)
        user = [{"role": "user", "content": "Go."}]
        pending = tracker.prepare(user, [TOOL], agent="agent", trainable=True, must_call=[TOOL])
        params = SamplingParams(max_tokens=5, grammar=pending.form)
        await engine.generate(pending.prompt_ids, params, session="s")
        await engine.aclose()
    assert server.asked[0]["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert json.loads(pending.form.text) == ["look"]
