"""The scripted engine answers as a real one would."""

import pytest

from astune.engine import InferenceEngine, ScriptedEngine
from astune.schema import EngineError, SamplingParams

PARAMS = SamplingParams(max_tokens=4, stop_token_ids=(2, 1))


async def test_every_session_reads_the_script_from_its_beginning():
    engine: InferenceEngine = ScriptedEngine([[5, 2], [6, 2]])
    for session in ("a", "b"):
        assert (await engine.generate([1], PARAMS, session=session)).token_ids == [5, 2]
        assert (await engine.generate([1], PARAMS, session=session)).token_ids == [6, 2]
    assert engine.stats().sampled_tokens == 8
    with pytest.raises(EngineError, match="asked for one more"):
        await engine.generate([1], PARAMS, session="a")


async def test_replies_end_at_the_first_stop_token_or_at_max_tokens():
    engine = ScriptedEngine(lambda prompt, params, session: prompt)
    cases = {(5, 2, 6): ([5, 2], "stop"), (5,): ([5, 2], "stop"), (5, 6, 7, 8, 9): ([5, 6, 7, 8], "length")}
    for reply, expected in cases.items():
        completion = await engine.generate(reply, PARAMS, session="a")
        assert (completion.token_ids, completion.finish_reason) == expected
        assert len(completion.logprobs) == len(completion.token_ids)
        assert all(logprob < 0 for logprob in completion.logprobs)


async def test_a_prompt_beyond_the_context_is_refused():
    engine = ScriptedEngine([[5, 2]], max_model_len=8)
    with pytest.raises(EngineError, match="exceed the context of 8 tokens"):
        await engine.generate([1] * 5, PARAMS, session="a")
