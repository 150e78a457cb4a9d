"""Structured answers at the proxy's door: what an agent asks for, and what it gets."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from family_templates import family_template
from proxy_stage import stage_proxy
from pydantic import BaseModel, Field, field_validator

from astune.engine.local.grammar import Grammars
from astune.renderers import Renderer
from astune.renderers.template_renderer import TemplateRenderer
from astune.schema import Constraint, EngineError, Grammar, SamplingParams, WorkflowError, closed_schema
from astune.workflow.response_format import grammar_of

pytestmark = pytest.mark.slow

ONE_ASK = version("agentscope") == "1.0.7"
"""Later versions ask for a text behind the call."""
ASK = [{"role": "user", "content": "Which city?"}]


class City(BaseModel):
    name: str
    people: int = Field(ge=0)

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if name == "nowhere":
            raise ValueError("no such city")
        return name


class Asked:
    """A proxy over an engine that gives one answer, and what that engine was asked for."""

    def __init__(self, renderer: Renderer, folder: Path, answer: str) -> None:
        from transformers import AutoTokenizer

        ids = AutoTokenizer.from_pretrained(folder)(answer)["input_ids"]
        self.params: list[SamplingParams] = []
        self.proxy, self.tracker = stage_proxy(
            renderer, lambda _prompt, params, _session: self.params.append(params) or ids
        )


async def test_a_structured_model_gives_its_fields_as_metadata_and_its_text_as_content(
    renderer: Renderer, smol_folder: Path
) -> None:
    asked = Asked(renderer, smol_folder, '{"name": "Bonn", "people": 330000}')
    response = await asked.proxy(ASK, structured_model=City)
    assert response.metadata == {"name": "Bonn", "people": 330000}
    assert response.content == [{"type": "text", "text": '{"name": "Bonn", "people": 330000}'}]
    [params] = asked.params
    assert params.grammar is not None
    schema = json.loads(params.grammar.text)
    assert schema["required"] == ["name", "people"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("answer", ['{"name": "Bo', '{"name": "nowhere", "people": 3}'])
async def test_an_answer_that_was_cut_or_that_a_validator_refuses_has_no_metadata(
    renderer: Renderer, smol_folder: Path, answer: str
) -> None:
    response = await Asked(renderer, smol_folder, answer).proxy(ASK, structured_model=City)
    assert response.metadata is None
    assert response.content[0]["text"] == answer


@pytest.mark.parametrize("family", ["llama3", "qwen3_5_think", "glm4moe", "gptoss"])
async def test_a_structured_answer_is_text_in_families_that_would_read_a_thought_or_a_call(
    family: str, smol_folder: Path
) -> None:
    asked = Asked(
        TemplateRenderer(family_template(family, smol_folder)), smol_folder, '{"name": "Bonn", "people": 330000}'
    )
    response = await asked.proxy(ASK, structured_model=City)
    assert response.metadata == {"name": "Bonn", "people": 330000}
    [answer] = [node for node in asked.tracker.forest.nodes if node.sampled]
    assert (answer.content, answer.reasoning, answer.tool_calls) == ('{"name": "Bonn", "people": 330000}', None, [])


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


ADD = tool("add", a={"type": "integer"})
LOOK = tool("look", where={"enum": ["north", "south"]})
CALL_ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("choice", "n_rules"),
    [("required", 2), ("any", 2), ("add", 1), ({"type": "function", "function": {"name": "add"}}, 1)],
)
async def test_a_forced_call_is_sampled_under_a_grammar_and_read_as_a_call(
    renderer: Renderer, smol_folder: Path, choice: Any, n_rules: int
) -> None:
    asked = Asked(renderer, smol_folder, CALL_ADD)
    answer = await asked.proxy.achat(ASK, [ADD, LOOK], tool_choice=choice)
    assert [call["function"] for call in answer["tool_calls"]] == [{"name": "add", "arguments": '{"a": 1}'}]
    [params] = asked.params
    assert params.grammar is not None
    assert (params.grammar.kind, params.grammar.text.count("%json")) == ("lark", n_rules)
    assert asked.tracker.forest.nodes[-1].constraint == params.constraint
    assert [node.tools for node in asked.tracker.forest.nodes if node.parent is None] == [[ADD, LOOK]]


@pytest.mark.parametrize("choice", [None, "auto", "none"])
async def test_a_call_that_is_not_forced_has_no_grammar(renderer: Renderer, smol_folder: Path, choice: Any) -> None:
    asked = Asked(renderer, smol_folder, CALL_ADD)
    answer = await asked.proxy.achat(ASK, [ADD], tool_choice=choice)
    assert asked.params[0].grammar is None
    assert ("tool_calls" in answer) == (choice != "none")


@pytest.mark.parametrize("choice", ["subtract", {"type": "function"}, {"name": "add"}])
async def test_a_tool_choice_that_names_no_offered_tool_is_refused_with_their_names(
    renderer: Renderer, smol_folder: Path, choice: Any
) -> None:
    with pytest.raises(WorkflowError, match="tools offered are: add, look"):
        await Asked(renderer, smol_folder, "x").proxy.achat(ASK, [ADD, LOOK], tool_choice=choice)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("x", "not a JSON schema of an object"),
        ({"type": "objekt"}, "not a JSON schema of an object"),
        ({"type": "object", "properties": 3}, "not a JSON schema of an object"),
        ({"type": "object", "properties": {"a": object()}}, "are not JSON"),
    ],
)
async def test_a_tool_whose_parameters_are_no_schema_is_refused_by_name(
    renderer: Renderer, smol_folder: Path, parameters: Any, says: str
) -> None:
    tool = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    with pytest.raises(WorkflowError, match=f"parameters of the tool odd.*{says}"):
        await Asked(renderer, smol_folder, "x").proxy.achat(ASK, [tool])


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {}}])
async def test_a_forced_call_of_a_tool_without_parameters_has_no_arguments(
    renderer: Renderer, smol_folder: Path, tokenizer: Any, parameters: dict[str, Any]
) -> None:
    now = {"type": "function", "function": {"name": "now", "description": "The time.", **parameters}}
    constraint = Constraint(renderer.call_grammar([now]), renderer.stop_token_ids)
    grammars = Grammars(smol_folder, len(tokenizer))

    def masks(arguments: str) -> int:
        call = f'<tool_call>\n{{"name": "now", "arguments": {arguments}}}\n</tool_call>'
        return len(grammars.masks(constraint, [*tokenizer(call)["input_ids"], renderer.stop_token_ids[0]]))

    assert masks("{}") > 0
    with pytest.raises(EngineError, match="is none that"):
        masks('{"zone": 1}')


@pytest.mark.parametrize("wrong", ["add", {"name": "add"}, {"type": "function"}, {"type": "function", "function": {}}])
async def test_what_is_no_tool_is_refused_with_the_shape_of_one(
    renderer: Renderer, smol_folder: Path, wrong: Any
) -> None:
    with pytest.raises(WorkflowError, match="which is not a tool") as refused:
        await Asked(renderer, smol_folder, "x").proxy.achat(ASK, [wrong])
    assert '"parameters"' in refused.value.hint


async def test_a_form_and_a_forced_call_exclude_each_other(renderer: Renderer, smol_folder: Path) -> None:
    with pytest.raises(WorkflowError, match="response_format and a tool_choice"):
        await Asked(renderer, smol_folder, "x").proxy.achat(
            ASK, [ADD], tool_choice="required", response_format={"type": "json_object"}
        )


class Note(BaseModel):
    response: str


@pytest.mark.parametrize(
    ("structured_model", "arguments"),
    [(City, {"name": "Bonn", "people": 330000}), (Note, {"response": "by a field of the plain finish's name"})],
)
async def test_an_agents_structured_reply_is_forced_through_its_finish_function(
    renderer: Renderer, smol_folder: Path, structured_model: type[BaseModel], arguments: dict[str, Any]
) -> None:
    """AgentScope's `ReActAgent(...)(msg, structured_model=...)`: a required call, and from 1.0.8 on then a text."""
    if ONE_ASK and "response" in arguments:
        pytest.skip("AgentScope 1.0.7 takes a field of this name for its own")
    said = {"response": "Bonn."} | arguments if ONE_ASK else arguments
    text = f'<tool_call>\n{{"name": "generate_response", "arguments": {json.dumps(said)}}}\n</tool_call>'
    asked = Asked(renderer, smol_folder, text)
    agent = ReActAgent("solver", "Be brief.", asked.proxy, OpenAIChatFormatter(), max_iters=3)
    reply = await agent(Msg("user", "Which city?", "user"), structured_model=structured_model)
    assert reply.metadata == arguments
    forced, *free = asked.params
    assert forced.grammar is not None
    assert "generate_response" in forced.grammar.text
    assert [params.grammar for params in free] == ([] if ONE_ASK else [None])


async def test_tools_are_not_offered_with_a_structured_model(renderer: Renderer, smol_folder: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {}}}}}
    asked = Asked(renderer, smol_folder, '{"name": "Bonn", "people": 1}')
    assert (await asked.proxy(ASK, tools=[tool], structured_model=City)).metadata is not None


async def test_an_agents_compressed_memory_is_structured_output(renderer: Renderer, smol_folder: Path) -> None:
    """AgentScope's own use of `structured_model`: the summary of a conversation that grew too long."""

    if not hasattr(ReActAgent, "CompressionConfig"):
        pytest.skip("this version of AgentScope compresses nothing")
    from agentscope.token import CharTokenCounter

    class Summary(BaseModel):
        gist: str = Field(max_length=40)

    asked = Asked(renderer, smol_folder, '{"gist": "numbers"}')
    agent = ReActAgent(
        "solver",
        "Be brief.",
        asked.proxy,
        OpenAIChatFormatter(),
        compression_config=ReActAgent.CompressionConfig(
            enable=True,
            agent_token_counter=CharTokenCounter(),
            trigger_threshold=200,
            keep_recent=1,
            summary_schema=Summary,
            summary_template="So far: {gist}",
        ),
    )
    for turn in range(3):
        await agent(Msg("user", f"turn {turn}: " + "one and one is two. " * 5, "user"))
    constrained = [node for node in asked.tracker.forest.nodes if node.constraint is not None]
    assert constrained
    read = [node.content for node in asked.tracker.forest.nodes if not node.sampled]
    assert any("So far: numbers" in text for text in read)


@pytest.mark.parametrize("chat", ["achat", "chat"])
async def test_a_response_format_reaches_the_engine_and_the_record(
    renderer: Renderer, smol_folder: Path, chat: str
) -> None:
    asked = Asked(renderer, smol_folder, "yes")
    response_format = {"type": "regex", "regex": "(yes|no)"}
    if chat == "achat":
        answer = await asked.proxy.achat(ASK, response_format=response_format)
    else:
        import asyncio

        answer = await asyncio.to_thread(asked.proxy.chat, ASK, response_format=response_format)
    assert answer == {"role": "assistant", "content": "yes"}
    grammar = Grammar("regex", "(yes|no)")
    assert [params.grammar for params in asked.params] == [grammar]
    assert [node.constraint for node in asked.tracker.forest.nodes if node.sampled] == [
        Constraint(grammar, tuple(renderer.stop_token_ids))
    ]
    await asked.proxy.achat(ASK)
    assert asked.params[-1].grammar is None
    assert asked.tracker.forest.nodes[-1].constraint is None


def test_the_shapes_of_openai_are_read() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    grammar = grammar_of(asked)
    assert grammar is not None
    assert grammar.kind == "json_schema"
    assert json.loads(grammar.text) == schema | {"additionalProperties": False}
    assert grammar_of({"type": "json_object"}) == Grammar("json_schema", '{"type": "object"}')
    assert grammar_of({"type": "text"}) is None
    assert grammar_of(None) is None


def test_objects_are_closed_wherever_they_stand_unless_their_schema_speaks_of_other_names() -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}}
    closed = inner | {"additionalProperties": False}
    open_inner = inner | {"additionalProperties": True}
    named_like_a_keyword = {"type": "object", "properties": {"properties": {"type": "object", "properties": {}}}}
    schema = {
        "type": "object",
        "properties": {"list": {"type": "array", "items": inner}, "open": open_inner, "odd": named_like_a_keyword},
        "$defs": {"x": inner, "both": {"allOf": [inner, inner]}, "either": {"anyOf": [inner, {"type": "null"}]}},
    }
    grammar = grammar_of({"type": "json_schema", "json_schema": {"schema": schema}})
    assert grammar is not None
    found: Any = json.loads(grammar.text)
    assert found["properties"]["list"]["items"] == closed
    assert found["properties"]["open"] == open_inner
    assert found["additionalProperties"] is False
    assert found["$defs"]["x"] == closed
    assert found["$defs"]["both"] == {"allOf": [inner, inner]}
    assert found["$defs"]["either"] == {"anyOf": [closed, {"type": "null"}]}
    assert set(found["properties"]["odd"]["properties"]) == {"properties"}
    assert "additionalProperties" not in schema


@pytest.mark.parametrize(
    "parts",
    [
        {"anyOf": [{"properties": {"n": {"const": 1}}}]},
        {"oneOf": [{"properties": {"n": {"const": 1}}}]},
        {"if": {"properties": {"n": {"const": 1}}}, "then": {"properties": {"m": {}}}},
        {"dependentSchemas": {"n": {"properties": {"m": {}}}}},
        {"not": {"properties": {"n": {"const": 1}}}},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_what_names_only_some_of_an_objects_properties_stays_open_and_so_does_the_object(parts: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, **parts}
    grammar = grammar_of({"type": "json_schema", "json_schema": {"schema": schema}})
    assert grammar is not None
    assert json.loads(grammar.text) == schema
    for union in ({"not": schema}, {"if": schema}, {"anyOf": [schema], "oneOf": [schema]}):
        assert closed_schema(union) == union


def test_what_is_referred_to_as_one_of_several_parts_stays_open_and_what_stands_alone_does_not() -> None:
    base = {"type": "object", "properties": {"n": {"type": "integer"}}}
    refers = {"$ref": "#/$defs/Base"}
    both = {"$defs": {"Base": base}, "allOf": [refers, {"properties": {"m": {}}}]}
    beside = {"$defs": {"Base": base}, "properties": {"m": {}}, **refers}
    for schema in (both, beside):
        assert closed_schema(schema) == schema
    for alone in ({"allOf": [refers]}, {"properties": {"m": refers}}, {"anyOf": [refers, {"type": "null"}]}, refers):
        closed = closed_schema({"$defs": {"Base": base}, **alone})
        assert closed["$defs"]["Base"] == base | {"additionalProperties": False}


def test_an_answer_that_its_schema_allows_by_two_of_its_parts_together_can_be_given(
    smol_folder: Path, tokenizer: Any
) -> None:

    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
        "required": ["kind"],
        "anyOf": [
            {"properties": {"kind": {"const": "a"}}, "required": ["x"]},
            {"properties": {"kind": {"const": "b"}}},
        ],
    }
    grammar = grammar_of({"type": "json_schema", "json_schema": {"schema": schema}})
    assert grammar is not None
    grammars, stop = Grammars(smol_folder, len(tokenizer)), tokenizer.eos_token_id
    for answer in ('{"kind": "a", "x": 1}', '{"kind": "b"}'):
        ids = [*tokenizer(answer)["input_ids"], stop]
        assert len(grammars.masks(Constraint(grammar, (stop,)), ids)) == len(ids)
    with pytest.raises(EngineError, match="is none that"):
        grammars.masks(Constraint(grammar, (stop,)), [*tokenizer('{"kind": "a"}')["input_ids"], stop])


@pytest.mark.parametrize("wrong", ["json", {"type": "grammar"}, {"type": "json_schema"}, int, {"type": "regex"}])
async def test_any_other_response_format_is_refused_with_the_ones_there_are(
    renderer: Renderer, smol_folder: Path, wrong: Any
) -> None:
    with pytest.raises(WorkflowError, match="response_format is") as refused:
        await Asked(renderer, smol_folder, "x").proxy.achat(ASK, response_format=wrong)
    assert "pydantic model" in refused.value.hint
