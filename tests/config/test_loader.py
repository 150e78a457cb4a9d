"""Reading a configuration: layers, overrides, aliases, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from astune.config import AstuneConfig, dump, load_config
from astune.config.loader import APPWORLD_TASKS, DEFAULT_YAML
from astune.schema import ConfigError


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str, name: str = "experiment.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def message_of(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_a_file_lies_over_the_defaults_and_an_override_over_the_file(write):
    path = write("astune: {trainer: {total_steps: 7, save_freq: 3}}")
    config = load_config(path, ["trainer.total_steps=9"])
    assert (config.trainer.total_steps, config.trainer.save_freq) == (9, 3)
    assert config.trainer.test_freq == AstuneConfig().trainer.test_freq


def test_the_shipped_defaults_say_what_the_schema_says():
    written = load_config(None)
    assert written == AstuneConfig()
    assert set(yaml.safe_load(DEFAULT_YAML.read_text())) == {"astune"}


def test_the_tasks_of_a_companion_count_where_the_experiment_names_none(write):
    silent, outspoken = "astune: {seed: 3}", "astune: {task_reader: {jsonl: {training: {file_path: a.jsonl}}}}"
    config = load_config(write(silent), ["task_reader.env_service.env_url=http://h:1"], tasks=APPWORLD_TASKS)
    service = config.task_reader.env_service
    assert (config.seed, config.task_reader.type, service.env_type, service.env_url, service.validation_split) == (
        3,
        "env_service",
        "appworld",
        "http://h:1",
        "dev",
    )
    assert load_config(write(outspoken), tasks=APPWORLD_TASKS) == load_config(write(outspoken))


def test_read_yaml_name_takes_the_files_stem(write):
    assert load_config(write("astune: {}", "my_agent.yaml")).experiment_name == "my_agent"


def test_an_empty_file_and_an_emptied_section_are_all_defaults(write):
    assert load_config(write("")).trainer == AstuneConfig().trainer
    assert load_config(write("astune:\n  trainer:\n    # total_steps: 3\n")).trainer == AstuneConfig().trainer


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("trainer.optim.lr=1e-5", lambda c: c.trainer.optim.lr == 1e-5),
        ("astune.trainer.optim.lr=0.5", lambda c: c.trainer.optim.lr == 0.5),
        ("deterministic=true", lambda c: c.deterministic is True),
        ("trainer.optim.betas=[0.8, 0.9]", lambda c: c.trainer.optim.betas == (0.8, 0.9)),
        ("trainer.algorithm=gspo", lambda c: c.trainer.algorithm.type == "gspo"),
        ("trainer.loss.importance_cap=null", lambda c: c.trainer.loss.importance_cap is None),
        (
            "task_reader.jsonl.training.file_path=a=b.jsonl",
            lambda c: c.task_reader.jsonl.training.file_path == "a=b.jsonl",
        ),
        ("task_reader.params.size=4", lambda c: c.task_reader.params == {"size": 4}),
        ("task_reader.params.rate=1e-3", lambda c: c.task_reader.params == {"rate": 0.001}),
        ("trainer.optim={lr: 0.1}", lambda c: c.trainer.optim.lr == 0.1 and c.trainer.optim.warmup_steps == 3),
        ("rollout.agentscope_learn_protocol=a.b->C", lambda c: c.rollout.workflow == "a.b->C"),
        ("rollout.num_repeat=010", lambda c: c.rollout.num_repeat == 10),
        ("rollout.params.zip=02134", lambda c: c.rollout.params == {"zip": "02134"}),
        ('rollout.params.marker="####"', lambda c: c.rollout.params == {"marker": "####"}),
        ("rollout.params={a: 1, b: [x, 2]} ", lambda c: c.rollout.params == {"a": 1, "b": ["x", 2]}),
    ],
)
def test_an_override_is_typed_as_in_yaml(override, read):
    assert read(load_config(None, [override]))


@pytest.mark.parametrize(
    "text",
    [
        "####",
        "You are #1. Be kind",
        "5 # five",
        "Answer: yes",
        "Observation:",
        "- a",
        "--- a",
        "[a] #1",
        "a#b",
        "a: b: c",
        "@x",
        "One.\nNote: two.",
        "One\ntwo",
    ],
)
def test_the_text_of_an_override_is_taken_whole(text):
    assert load_config(None, [f"rollout.params.prompt= {text} "]).rollout.params == {"prompt": text}


def test_keys_are_the_text_that_is_written(write):
    keys = "{on: a, No: b, 1: c, 1.50: d, 2026-01-31: e, null: f, <<: {y: g}}"
    read = dict(zip(("y", "on", "No", "1", "1.50", "2026-01-31", "null"), "gabcdef", strict=True))
    config = load_config(
        write(f"astune:\n  rollout: {{params: {{on: 1, inner: {keys}}}}}\n"), [f"task_reader.params.a={keys}"]
    )
    assert config.rollout.params == {"on": 1, "inner": read}
    assert config.task_reader.params == {"a": read}


def test_a_key_of_python_that_is_no_text_is_refused():
    for values, at in (({"rollout.params": {5: "x"}}, "params"), ({"rollout.params.a": [{5: "x"}]}, r"params\.a")):
        with pytest.raises(
            ConfigError, match=rf"a key of `astune\.rollout\.{at}` must be text; found the number 5; quote"
        ):
            load_config(None, values=[values])


def test_overrides_below_one_section_add_up():
    config = load_config(None, ["task_reader.params.a=1", "trainer.optim.lr=0.1", "trainer.optim.warmup_steps=0"])
    assert (config.trainer.optim.lr, config.trainer.optim.warmup_steps) == (0.1, 0)


def test_overrides_leave_the_rest_of_an_open_section(write):
    path = write("astune: {verl: {trainer: {nnodes: 2, n_gpus_per_node: 8}}}\n")
    config = load_config(path, ["verl.trainer.save_freq=1", "verl.trainer.nnodes=3", "verl.data.seed=4"])
    assert config.verl == {"trainer": {"nnodes": 3, "n_gpus_per_node": 8, "save_freq": 1}, "data": {"seed": 4}}


def test_the_documented_aliases_are_the_same_keys(write):
    config = load_config(
        write(
            """
astune:
  task_reader:
    type: dataset_file
    dataset_file: {training: {file_path: train.jsonl}}
  rollout: {agentscope_learn_protocol: tutorial.x->Y}
"""
        )
    )
    assert config.task_reader.type == "jsonl"
    assert config.task_reader.jsonl.training is not None
    assert config.rollout.workflow == "tutorial.x->Y"


@pytest.mark.parametrize("engine", ["verl", "trinity"])
def test_an_engines_section_may_stand_beside_the_root_key(write, engine):
    beside = load_config(write(f"{engine}:\n  trainer: {{nnodes: 2}}\nastune:\n  seed: 1\n"))
    within = load_config(write(f"astune:\n  seed: 1\n  {engine}:\n    trainer: {{nnodes: 2}}\n"))
    assert beside == within
    assert getattr(beside, engine) == {"trainer": {"nnodes": 2}}
    assert load_config(write(f"{engine}:\n  # trainer: {{nnodes: 2}}\n")) == load_config(write(""))
    with pytest.raises(ConfigError, match=rf"line 1: `{engine}` and `astune\.{engine}` are the same key"):
        load_config(write(f"{engine}: {{a: 1}}\nastune: {{{engine}: {{a: 1}}}}\n"))


def test_no_judge_may_be_written_as_null(write):
    assert load_config(write("astune: {task_judge: {judge_protocol: null}}\n")).task_judge.judge_protocol == ""


def test_both_names_of_one_key_are_refused(write):
    text = message_of(write("astune:\n  rollout: {workflow: a->B, agentscope_learn_protocol: c->D}"))
    assert "are the same key" in text
    assert "line 2" in text


def test_dump_reads_back_to_the_same_configuration(write):
    config = load_config(None, ["experiment_name=one", "task_reader.params.size=4", "trainer.optim.lr=1e-6"])
    assert load_config(write(dump(config))) == config


@pytest.mark.parametrize("text", ["12e03", "1e-6", "010", "1:30", "on", "a\x85b", "\u2028"])
def test_dumped_text_stays_text(write, text):
    """A commit's short hash may look like a number, and no resume would read the experiment's name."""
    config = load_config(None, values=[{"experiment_name": text, "rollout.params": {"a": [text], text: 1}}])
    assert load_config(write(dump(config))) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "astune:\n  rollout:\n    num_repat: 4\n",
            ["line 3", "astune.rollout.num_repat", "`astune.rollout.num_repeat`?"],
        ),
        ("astune:\n  lr: 1e-5\n", ["line 2", "`astune.lr`", "`astune.trainer.optim.lr`?"]),
        (
            "astune:\n  rollout:\n    total_steps: 4\n",
            ["`astune.rollout.total_steps`", "`astune.trainer.total_steps`?"],
        ),
        ("astune:\n  agentscope_learn_protocol: a->B\n", ["`astune.rollout.workflow`?"]),
        (
            "astune:\n  trainer.total_steps: 5\n",
            ["line 2: `astune.trainer.total_steps` is written with dots", "nest it: trainer: {total_steps: ...}"],
        ),
        ("astune:\n  trainer:\n    optim.lr: 5\n", ["line 3", "nest it: trainer: {optim: {lr: ...}}"]),
        ("astune:\n  trainer: {zzz: 1}\n", ["`astune.trainer.zzz`", "its keys are tasks_per_step"]),
        ("rollout:\n  num_repeat: 4\n", ["line 1", "unknown root key `rollout`", "add a line `astune:` above it"]),
        ("astuner: {}\n", ["unknown root key `astuner`", "did you mean `astune`?"]),
        ("astune:\n  trainer: 5\n", ["line 2", "`astune.trainer` must be a section", "the number 5"]),
        ("astune: [1]\n", ["`astune` must be a section"]),
        ("- a\n- b\n", ["line 1", "expected `key: value`", "a list"]),
        ("astune:\n  seed: 1\n  seed: 2\n", ["line 3", "appears twice", "line 2"]),
    ],
)
def test_a_wrong_key_is_named_with_its_place_and_the_nearest_known_one(write, text, says):
    message = message_of(write(text))
    assert all(part in message for part in says), message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trainer: {total_steps: many}", ["a whole number, at least 1", 'the text "many"']),
        ("trainer: {total_steps: 0}", ["at least 1", "the number 0"]),
        ("trainer: {total_steps: 2.5}", ["a whole number", "2.5"]),
        ("trainer: {total_steps: true}", ["a whole number", "the boolean true"]),
        ("seed: 9223372036854775808", ["at least 0 and at most 9223372036854775807", "the number 9223372036854775808"]),
        ("rollout: {temperature: .inf}", ["a number, at least 0", "inf"]),
        ("deterministic: perhaps", ["true or false"]),
        ("experiment_name: 2024", ["must be text", "quote it"]),
        ("experiment_name: ../other", ["inside record_dir", "'../other'"]),
        ("experiment_name: /tmp/other", ["inside record_dir", "'/tmp/other'"]),
        ("experiment_name: ''", ["inside record_dir", "''"]),
        ("model: {device: gpu}", ["one of auto, cuda, mps, cpu"]),
        ("model: {dtype: bfloat}", ["did you mean bfloat16?"]),
        ("backbone: trinty", ["line 2", "did you mean trinity?"]),
        ("task_reader: {jsonl: {training: {}}}", ["`astune.task_reader.jsonl.training.file_path` is missing"]),
        ("trainer: {optim: {betas: [0.9]}}", ["`astune.trainer.optim.betas`", "a list of 2"]),
        ("rollout: {max_model_len: 64}", ["max_response_length_in_one_turn must be smaller"]),
        ("trainer: {optim: }\n  seed:", ["`astune.seed`", "empty"]),
    ],
)
def test_a_wrong_value_says_what_it_must_be_and_what_it_is(write, text, says):
    message = message_of(write(f"astune:\n  {text}\n"))
    assert all(part in message for part in says), message
    assert "pydantic" not in message


def test_several_problems_are_reported_together_each_once(write):
    path = write("astune:\n  seed: x\n  rollout: {num_repat: 4}\n  trainer: {total_steps: 0}\n")
    message = message_of(path, "trainer.optim.l=3")
    assert "4 problems" in message
    for part in ("line 2", "line 3", "line 4", "--set trainer.optim.l=3"):
        assert message.count(part) == 1, message


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("astune:\n  seed: 1\n\trollout: {}\n", "line 3, column 1", "never with tabs"),
        ("astune:\n  rollout: {num_repeat: 4\n  seed: 2\n", "line 3", "unclosed quote or bracket"),
        ("astune:\n  project_name: a: b\n", "line 2, column 18", "into quotes"),
        ("astune:\n  project_name: 'a\n", "line 3", "unclosed"),
        ("astune:\n   seed: 1\n  rollout: {}\n", "line 3", "indentation"),
        ("astune: *nothing\n", "line 1", ""),
    ],
)
def test_a_yaml_mistake_shows_line_column_and_the_line_itself(write, text, place, hint):
    message = message_of(write(text))
    assert "is not valid YAML" in message
    assert place in message
    assert hint in message
    assert "|" in message
    assert "^" in message


def test_a_file_that_is_not_there_names_its_neighbours(write, tmp_path):
    write("astune: {}", "calculator.yaml")
    assert "calculator.yaml" in message_of(tmp_path / "calculater.yaml")
    assert "is a folder" in message_of(tmp_path)
    assert "nowhere does not exist either" in message_of(tmp_path / "nowhere" / "x.yaml")


def test_a_file_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("astune: {project_name: caf\xe9}".encode("latin-1"))
    assert "UTF-8" in message_of(path)


@pytest.mark.parametrize("override", ["trainer", "=3", "trainer.optim.lr=[", "trainer.optim.lr"])
def test_a_malformed_override_is_named(override):
    assert f"--set {override}" in message_of(None, override)


def test_an_override_below_a_value_is_refused():
    assert "`astune.seed`" in message_of(None, "seed.x=3")
