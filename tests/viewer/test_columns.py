"""Measurements by metric: what the first charts ask for."""

from __future__ import annotations

import json
import math

import pytest
from viewer_stage import get, make_episode, serving, write_run

from astune.runs import parse_line


def test_columns_say_which_lines_have_a_metric(tmp_path):
    run = write_run(tmp_path, [])
    lines = [
        (0, "validation", 7.0, 1.0, {"reward/mean": 0.5, "time/validation_s": 2.0}),
        (1, "train", 8.0, 2.0, {"reward/mean": 0.75, "time/train_s": 3.0, "own": 9.0}),
    ]
    names = ("step", "kind", "time", "elapsed_s", "metrics")
    (run / "metrics.jsonl").write_text(
        "".join(f"{json.dumps(dict(zip(names, line, strict=True)))}\n" for line in lines)
    )
    with serving(run) as client:
        assert get(client, "metrics", run="", name=["reward/mean", "time/*"]) == [
            {
                "run": "",
                "names": ["own", "reward/mean", "time/train_s", "time/validation_s"],
                "at": [[0, "validation", 7.0, 1.0], [1, "train", 8.0, 2.0]],
                "columns": {
                    "reward/mean": {"of": None, "values": [0.5, 0.75]},
                    "time/train_s": {"of": [1], "values": [3.0]},
                    "time/validation_s": {"of": [0], "values": [2.0]},
                },
            }
        ]
    (run / "metrics.jsonl").write_text("")
    with serving(run) as client:
        assert get(client, "metrics", run="", name="own") == [{"run": "", "names": [], "at": [], "columns": {}}]


def test_they_are_made_again_when_the_run_goes_on(tmp_path):
    run = write_run(tmp_path, [make_episode(0, step=1), make_episode(0, step=2)])
    with serving(run) as client:
        [told] = get(client, "metrics", run="", name="train/lr")
        assert told["columns"] == {"train/lr": {"of": None, "values": [None, None]}}, "NaN is known, and no number"
        assert told["names"] == ["reward/mean", "train/lr"]
        with open(run / "metrics.jsonl", "ab") as file:
            file.write(b'{"step": 3, "kind": "train", "time": 1.0, "elapsed_s": 9.0, "metrics": {"train/lr": 0.5}}\n')
        [grown] = get(client, "metrics", run="", name="train/lr")
        assert grown["at"][-1] == [3, "train", 1.0, 9.0]
        assert grown["columns"]["train/lr"]["values"] == [None, None, 0.5]


@pytest.mark.parametrize(("given", "known"), [(1.5, 1.5), (2, 2.0), ("inf", math.inf)])
def test_numbers_of_a_line_are_floats(given, known):
    value = f'"{given}"' if isinstance(given, str) else given
    line = parse_line(f'{{"step":1,"kind":"train","time":1,"elapsed_s":1,"metrics":{{"a":0.5,"b":{value}}}}}'.encode())
    assert line.metrics == {"a": 0.5, "b": known}
    assert {type(value) for value in line.metrics.values()} == {float}
