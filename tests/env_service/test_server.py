"""A real server process, asked with raw HTTP: the protocol's bytes, and what becomes of instances and processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from examples import some
from service_stage import Service, children_of, is_running, refused, running, world
from waiting import eventually

from astune.env_service import EnvStep
from astune.env_service.client import ServiceHandle
from astune.schema import Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running(world("Counter"), "--max-instances", "8", "--call-timeout-s", "60") as service:
        yield service


def post_bytes(service: Service, endpoint: str, body: str) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    url = f"{service.url}/{endpoint}"
    return httpx.post(url, content=body.encode(), headers=headers, timeout=60, trust_env=False, verify=False)


class TestBytes:
    """Requests and answers to the letter; a client in any language sees these."""

    WALK = (
        (
            "get_env_profile",
            '{"env_type":"Counter","task_id":null,"instance_id":null,"messages":{},"params":{"split":"train"}}',
            '{"success":true,"data":["a","b","ü"]}',
        ),
        (
            "create",
            '{"env_type":"Counter","task_id":"a","instance_id":"i1","messages":{},"params":{}}',
            '{"success":true,"data":{"state":[{"role":"user","content":"task a"}],'
            '"info":{"instance_id":"i1","task_id":"a"}}}',
        ),
        (
            "step",
            '{"env_type":"default","task_id":null,"instance_id":"i1",'
            '"messages":{"role":"assistant","content":"go"},"params":{}}',
            '{"success":true,"data":{"state":[{"role":"user","content":"step 1"}],'
            '"reward":0.5,"is_terminated":false,"info":{}}}',
        ),
        (
            "evaluate",
            '{"env_type":"default","task_id":null,"instance_id":"i1","messages":{},"params":{"sparse":true}}',
            '{"success":true,"data":0.0}',
        ),
        (
            "evaluate",
            '{"env_type":"default","task_id":null,"instance_id":"i1","messages":{},"params":{"sparse":false}}',
            '{"success":true,"data":0.25}',
        ),
        (
            "get_info",
            '{"env_type":"default","task_id":null,"instance_id":"i1","messages":{},"params":{}}',
            '{"success":true,"data":"1 steps, seed 1481238324449861677, metadata {}"}',
        ),
        (
            "release",
            '{"env_type":"default","task_id":null,"instance_id":"i1","messages":{},"params":{}}',
            '{"success":true,"data":null}',
        ),
        (
            "release",
            '{"env_type":"default","task_id":null,"instance_id":"i1","messages":{},"params":{}}',
            '{"success":false,"data":null}',
        ),
    )

    def test_an_episode_is_answered_to_the_letter(self, service):
        for endpoint, asked, answered in self.WALK:
            answer = post_bytes(service, endpoint, asked)
            assert answer.content.decode() == answered
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")

    def test_healthz_is_ok_and_its_headers_hold_the_capacity(self, service):
        answer = httpx.get(f"{service.url}/healthz", timeout=60, trust_env=False, verify=False)
        assert (answer.status_code, answer.content) == (200, b'"OK"')
        assert service.capacity() == (0, 8, 8)
        service.create("i2")
        assert service.capacity() == (1, 7, 8)
        service.post("release", instance_id="i2")

    @pytest.mark.parametrize(
        ("endpoint", "body", "status", "detail"),
        [
            ("create", "{", 422, "the body is not JSON"),
            ("create", "[]", 422, "not a JSON object"),
            ("create", '{"task_id":["a"]}', 422, "'task_id' is expected to be text"),
            ("create", "{}", 422, "'task_id' is missing"),
            ("create", '{"task_id":"a","params":{"task":{"task_id":"a","colour":1}}}', 422, "colour"),
            ("create", '{"task_id":"a","params":{"task":{"task_id":"b","main_query":"q"}}}', 422, "is 'b'"),
            ("create", '{"task_id":"a","env_type":"appworld"}', 404, "Counter, not 'appworld'"),
            ("get_env_profile", '{"env_type":"appworld"}', 404, "Counter, not 'appworld'"),
            ("step", '{"instance_id":"nobody","messages":{"content":"go"}}', 404, "no instance 'nobody'"),
            ("step", '{"instance_id":"nobody","messages":[{},{}]}', 422, "holds 2 messages"),
            ("step", '{"instance_id":"nobody"}', 422, "a message with 'content'"),
            ("step", '{"instance_id":"n","messages":{"content":""},"params":{"step_index":"0"}}', 422, "whole number"),
            ("evaluate", '{"instance_id":"nobody"}', 404, "no instance 'nobody'"),
            ("create", '{"task_id":"unborn"}', 500, "RuntimeError: no world today"),
            ("nowhere", "{}", 404, "Not Found"),
            ("healthz", "{}", 405, "Method Not Allowed"),
        ],
    )
    def test_an_error_is_a_status_and_one_short_line(self, service, endpoint, body, status, detail):
        answer = post_bytes(service, endpoint, body)
        assert (answer.status_code, list(answer.json())) == (status, ["detail"])
        assert detail in answer.json()["detail"]
        assert len(answer.json()["detail"]) <= 500
        assert "Traceback" not in answer.text
        assert "\n" not in answer.json()["detail"]

    def test_what_a_web_page_could_send_unasked_is_refused(self, service):
        url = f"{service.url}/create"
        answer = httpx.post(url, content=b'{"task_id":"a"}', timeout=60, trust_env=False, verify=False)
        assert answer.status_code == 415

    def test_a_list_of_one_message_is_an_action_as_well(self, service):
        service.create("listed")
        answer = service.post("step", instance_id="listed", messages=[{"role": "assistant", "content": "go"}])
        assert answer.json()["data"]["state"] == [{"role": "user", "content": "step 1"}]
        service.post("release", instance_id="listed")

    def test_a_value_that_is_null_is_as_if_it_were_missing(self, service):
        assert service.post("create", instance_id="null", task_id="a", params={"seed": None}).status_code == 200
        service.step("null", "go")
        assert service.post("evaluate", instance_id="null", params={"sparse": None}).json()["data"] == 0.0
        service.post("release", instance_id="null")

    def test_a_task_of_the_client_reaches_the_environment_with_its_seed(self, service):
        task = {"task_id": "mine", "main_query": "q", "metadata": {"answer": 10**30}}
        answer = service.post("create", task_id="mine", params={"task": task, "seed": 5})
        instance_id = answer.json()["data"]["info"]["instance_id"]
        told = service.post("get_info", instance_id=instance_id).json()["data"]
        assert told == "0 steps, seed 5, metadata {'answer': 1000000000000000000000000000000}"
        service.post("release", instance_id=instance_id)


class TestRepeating:
    @pytest.fixture(autouse=True)
    def _instance(self, service) -> Iterator[None]:
        service.create("r")
        yield
        service.post("release", instance_id="r")

    def test_a_repeated_step_is_applied_once(self, service):
        first = service.step("r", "go", step_index=0)
        again = service.step("r", "go", step_index=0)
        assert again.content == first.content
        assert [answer.headers["Step-Index"] for answer in (first, again)] == ["1", "1"]
        assert service.step("r", "go", step_index=1).json()["data"]["state"][0]["content"] == "step 2"

    def test_twenty_repetitions_at_once_are_one_step(self, service):
        with ThreadPoolExecutor(20) as threads:
            answers = list(threads.map(lambda _: service.step("r", "go", step_index=0).content, range(20)))
        assert len(set(answers)) == 1
        assert service.post("get_info", instance_id="r").json()["data"].startswith("1 steps")

    @pytest.mark.parametrize(
        ("content", "index", "detail"),
        [("go", 5, "at step 2, and was asked for step 5"), ("go", 0, "at step 2, and was asked for step 0"),
         ("another", 1, "took step 1 with another action"), ("go", -1, "asked for step -1")],
    )  # fmt: skip
    def test_a_gap_or_another_past_is_a_conflict(self, service, content, index, detail):
        for step_index in range(2):
            assert service.step("r", "go", step_index=step_index).status_code == 200
        answer = service.step("r", content, step_index=index)
        assert answer.status_code == 409
        assert detail in answer.json()["detail"]

    def test_steps_without_an_index_are_all_applied(self, service):
        states = [service.step("r", "go").json()["data"]["state"][0]["content"] for _ in range(2)]
        assert states == ["step 1", "step 2"]

    def test_a_step_after_the_end_is_a_conflict_and_the_last_one_can_be_repeated(self, service):
        last = service.step("r", "end", step_index=0)
        assert service.step("r", "end", step_index=0).content == last.content
        answer = service.step("r", "go", step_index=1)
        assert (answer.status_code, "has ended" in answer.json()["detail"]) == (409, True)

    def test_a_repeated_create_makes_no_second_instance(self, service):
        live, _, _ = service.capacity()
        assert service.create("r").json()["data"]["info"] == {"instance_id": "r", "task_id": "a"}
        assert service.capacity()[0] == live
        service.step("r", "go")
        assert service.create("r").status_code == 409


class TestInstances:
    def test_two_at_once_share_no_state(self, service):
        for instance_id in ("x", "y"):
            service.create(instance_id)
        before = {i: service.info_of(i, "pid") for i in ("x", "y")}
        for _ in range(3):
            service.step("x", "go")
        after = {i: service.info_of(i, "pid") for i in ("x", "y")}
        assert before["x"]["pid"] != before["y"]["pid"]
        assert after["x"]["steps_in_process"] == before["x"]["steps_in_process"] + 4
        assert after["y"]["steps_in_process"] == before["y"]["steps_in_process"] + 1
        for instance_id in ("x", "y"):
            service.post("release", instance_id=instance_id)

    def test_a_process_is_used_again_after_a_clean_end(self, service):
        pids = []
        for _ in range(6):
            service.create("again")
            pids.append(service.info_of("again", "pid")["pid"])
            service.post("release", instance_id="again")
        assert len(set(pids)) <= 3

    def test_half_a_character_becomes_a_sign_for_it(self, service):
        service.create("half")
        assert service.info_of("half", "half_a_character") == {"half": "a\ufffd", "halves": "\U0001f600b"}
        service.post("release", instance_id="half")

    def test_half_a_character_of_a_models_is_no_failure(self, service):
        async def step() -> EnvStep:
            handle = ServiceHandle(service.url, "default", Task("a", main_query="?"), 0, timeout_s=20)
            await handle.create()
            try:
                return await handle.step({"role": "assistant", "content": "say \ud83d"})
            finally:
                await handle.release()

        assert not asyncio.run(step()).is_terminated

    def test_what_an_environment_prints_is_no_answer(self, service):
        service.create("loud")
        assert service.step("loud", "print").json()["data"]["state"][0]["content"] == "step 1"
        assert service.step("loud", "go").json()["data"]["state"][0]["content"] == "step 2"
        service.post("release", instance_id="loud")
        eventually(lambda: "this is no frame\nnor is this\n" in service.log, "the print in the log")

    @pytest.mark.parametrize(
        ("action", "said"),
        [
            ("raise", "RuntimeError: the world broke"),
            ("exit", "step: the environment's process ended with exit status 3"),
            ("kill", "step: the environment's process was ended by SIGKILL"),
            ("nan", "ValueError: Out of range float values are not JSON compliant"),
            ("bad_info", "TypeError: Counter cannot be encoded as JSON"),
        ],
    )
    def test_a_failing_instance_is_gone_and_no_other(self, service, action, said):
        service.create("good")
        service.create("bad", "b")
        answer = service.step("bad", action, step_index=0)
        assert answer.status_code == 500
        assert answer.json()["detail"].startswith("instance bad of task b: ")
        assert said in answer.json()["detail"]
        again = service.step("bad", action, step_index=0)
        assert again.status_code == 410
        assert said in again.json()["detail"]
        assert service.step("good", "go").status_code == 200
        service.post("release", instance_id="good")
        assert service.capacity()[0] == 0

    def test_numbers_of_numpy_are_numbers(self, service):
        service.create("numbers")
        assert service.info_of("numbers", "numpy") == {"ten": 10, "rows": [[0.0, 0.0]], "3": "three"}
        service.post("release", instance_id="numbers")

    def test_an_instance_that_cannot_say_how_it_is_goes_on(self, service):
        service.create("silent", "silent")
        answer = service.post("get_info", instance_id="silent")
        assert (answer.status_code, "nothing to say" in answer.json()["detail"]) == (500, True)
        assert service.step("silent", "go").status_code == 200
        service.post("release", instance_id="silent")

    def test_a_traceback_is_in_the_servers_log(self, service):
        service.create("traced")
        service.step("traced", "raise")
        eventually(lambda: "RuntimeError: the world\nbroke" in service.log, "the traceback")

    @pytest.mark.slow
    def test_an_environment_that_hangs_is_ended(self):
        with running(world("Counter"), "--call-timeout-s", "3") as service:
            for action in ("sleep", "hold_the_interpreter"):
                service.create("stuck")
                pid = service.info_of("stuck", "pid")["pid"]
                answer = service.step("stuck", action)
                assert answer.status_code == 500
                assert "step: the environment's process took longer than 3 s" in answer.json()["detail"]
                eventually(lambda pid=pid: not is_running(pid), "the process to end")

    def test_a_release_does_not_wait_for_a_stuck_step(self, service):
        service.create("stuck", "dreamer")
        pid = service.info_of("stuck", "pid")["pid"]
        with ThreadPoolExecutor(1) as thread:
            step = thread.submit(service.step, "stuck", "sleep")
            eventually(lambda: "dreamer falls asleep" in service.log, "the step to begin")
            assert service.post("release", instance_id="stuck").json() == {"success": True, "data": None}
            answer = step.result(60)
            assert (answer.status_code, "released during a call" in answer.json()["detail"]) == (410, True)
        assert not is_running(pid)
        assert service.capacity()[0] == 0

    def test_what_an_environment_started_ends_with_it(self, service):
        service.create("parent")
        info = service.info_of("parent", "child")
        service.step("parent", "kill")
        eventually(lambda: not is_running(info["child"]), "the child to end")

    def test_temporary_files_of_one_that_is_killed_are_removed(self, service):
        service.create("untidy")
        file = Path(service.info_of("untidy", "temporary")["file"])
        assert file.is_file()
        service.step("untidy", "kill")
        assert not file.parent.exists()

    @pytest.mark.slow
    def test_folders_of_any_depth_are_removed(self, service):
        service.create("nests")
        folder = Path(service.info_of("nests", "nest")["folder"])
        assert folder.is_dir()
        assert service.step("nests", "kill").status_code == 500
        assert not folder.parent.exists()
        assert service.create("next").status_code == 200


@pytest.mark.slow
class TestPlaces:
    def test_when_all_are_taken_the_next_is_told_when_to_come_again(self):
        with running(world("Counter"), "--max-instances", "2") as service:
            with ThreadPoolExecutor(5) as threads:
                answers = list(threads.map(lambda number: service.create(str(number)), range(5)))
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses == [200, 200, 429, 429, 429]
            [refused, *_] = [answer for answer in answers if answer.status_code == 429]
            assert refused.headers["Retry-After"] == "1"
            assert "all 2 places are taken" in refused.json()["detail"]
            [taken, *_] = [str(number) for number, answer in enumerate(answers) if answer.status_code == 200]
            service.post("release", instance_id=taken)
            assert service.create("next").status_code == 200

    def test_an_idle_instance_is_released(self):
        with running(world("Counter"), "--idle-release-s", "1") as service:
            service.create("idle")
            eventually(lambda: service.capacity()[0] == 0, "the idle instance to be released")
            answer = service.step("idle", "go")
            assert answer.status_code == 410
            assert "released after 1 s without a call" in answer.json()["detail"]

    def test_an_instance_that_takes_long_to_close_holds_up_no_other(self, tmp_path):
        told = tmp_path / "told"
        with running(world("ClosesWhenTold"), "--idle-release-s", "2") as service:
            service.create("slow", str(told))
            eventually(lambda: f"{told} closes" in service.log, "the first one to close")
            for instance_id in ("used", "last"):
                service.create(instance_id, str(tmp_path))
            eventually(lambda: service.step("used", "go") and service.capacity()[0] == 2, "the last one to be released")
            assert service.step("used", "go").status_code == 200
            assert service.step("last", "go").status_code == 410
            told.touch()
            eventually(lambda: service.step("used", "go") and service.capacity()[0] == 1, "the first one to end")

    def test_processes_wait_for_instances(self):
        with running(world("Counter"), "--warm", "3") as service:
            eventually(lambda: len(service.workers()) == 3, "three processes")
            waiting = service.workers()
            service.create("i")
            assert service.info_of("i", "pid")["pid"] in waiting
            eventually(lambda: len(service.workers()) == 4, "one more to wait")

    def test_a_waiting_process_that_died_is_not_used(self):
        with running(world("Counter"), "--warm", "2") as service:
            eventually(lambda: len(service.workers()) == 2, "two processes")
            dead = service.workers()
            for pid in dead:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: not any(map(is_running, dead)), "their end")
            assert service.create("i").status_code == 200
            assert service.info_of("i", "pid")["pid"] not in dead

    def test_a_class_may_want_a_process_for_each_instance(self):
        with running(world("Fresh"), "--warm", "1") as service:
            pids = []
            for _ in range(2):
                service.create("i")
                pids.append(service.info_of("i", "pid")["pid"])
                service.post("release", instance_id="i")
            assert pids[0] != pids[1]
            eventually(lambda: not is_running(pids[0]), "the used process to end")

    def test_an_environment_that_does_not_close_is_an_error_and_gone(self):
        with running(world("Unclosed")) as service:
            service.create("i")
            answer = service.post("release", instance_id="i")
            assert (answer.status_code, "the door is stuck" in answer.json()["detail"]) == (500, True)
            assert service.capacity()[0] == 0


@pytest.mark.slow
class TestForks:
    """Processes that are forked from one that was prepared."""

    def test_all_instances_share_one_preparation_and_nothing_later(self):
        with running(world("Prepared"), "--warm", "1") as service:
            for instance_id in ("a", "b"):
                service.create(instance_id)
            first, second = (service.info_of(instance_id, "pid") for instance_id in ("a", "b"))
            assert len({first["pid"], second["pid"], first["prepared_in"]}) == 3
            assert first["prepared_in"] == second["prepared_in"]
            assert (first["steps_in_process"], second["steps_in_process"]) == (1, 1)
            assert service.workers() == {first["prepared_in"]}

    @pytest.mark.parametrize(
        ("action", "said"), [("exit", "environment's process ended"), ("raise", "the world broke")]
    )
    def test_a_failing_instance_is_gone_and_no_other(self, action, said):
        with running(world("Prepared")) as service:
            for instance_id in ("well", "ill"):
                service.create(instance_id)
            files = [Path(service.info_of(instance_id, "temporary")["file"]) for instance_id in ("well", "ill")]
            answer = service.step("ill", action)
            assert (answer.status_code, said in answer.json()["detail"]) == (500, True)
            assert service.step("ill", "go").status_code == 410
            assert service.step("well", "go").status_code == 200
            assert [file.is_file() for file in files] == [True, False]
            assert service.create("next").status_code == 200

    def test_a_prepared_process_that_died_is_replaced(self):
        with running(world("Prepared"), "--warm", "1") as service:
            service.create("before")
            dead = service.info_of("before", "pid")["prepared_in"]
            os.kill(dead, signal.SIGKILL)
            eventually(lambda: not is_running(dead), "its end")
            assert service.step("before", "go").status_code == 200
            pids = set()
            for number in range(3):  # of which one was forked before
                assert service.create(f"after-{number}").status_code == 200
                pids.add(service.info_of(f"after-{number}", "pid")["prepared_in"])
            assert len(pids - {dead}) == 1

    @pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
    def test_no_process_outlives_the_server(self, how):
        with running(world("Prepared")) as service:
            service.create("parent")
            info = service.info_of("parent", "pid")
            child = service.info_of("parent", "child")["child"]
            everything = {service.process.pid, info["pid"], info["prepared_in"], child}
            assert all(map(is_running, everything))
            service.end(how)
            eventually(lambda: not any(map(is_running, everything)), "every process to end")


@pytest.mark.slow
class TestEnd:
    """No process is left behind, however the server ends."""

    @pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
    def test_no_process_outlives_the_server(self, how):
        with running(world("Counter"), "--warm", "2") as service, ThreadPoolExecutor(1) as thread:
            eventually(lambda: len(service.workers()) == 2, "two processes")
            for instance_id in ("idle", "busy", "parent"):
                service.create(instance_id)
            child = service.info_of("parent", "child")["child"]
            busy = service.info_of("busy", "pid")["pid"]
            before = _cpu_ticks(busy)
            step = thread.submit(service.step, "busy", "hold_the_interpreter")
            eventually(lambda: _cpu_ticks(busy) > before + 20, "the busy instance to compute")
            everything = {service.process.pid, child, *service.workers()}
            assert len(everything) >= 5
            service.end(how)
            if how == signal.SIGKILL:
                assert isinstance(step.exception(30), httpx.TransportError)
            else:
                assert (step.result(30).status_code, "the server ended" in step.result().text) == (410, True)
            eventually(lambda: not any(map(is_running, everything)), "every process to end")

    def test_what_an_environment_started_with_it_ends_too(self):
        with running(world("Counter")) as service:
            service.create("parent")
            child = service.info_of("parent", "child")["child"]
            assert children_of(service.info_of("parent", "pid")["pid"]) == {child}
            service.end(signal.SIGKILL)
            eventually(lambda: not is_running(child), "the child to end")


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[11])


class TestStart:
    """What cannot start says so in two lines, and ends with status 2."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        some(
            [
                (
                    ["--env", "calculater", "--port", "0"],
                    ["there is no environment 'calculater'", "calculator, gymnasium, frozenlake"],
                ),
                (["--env", "tests.nowhere->Env", "--port", "0"], ["--env", "nowhere"]),
                (["--env", "reasoning_gym", "--port", "0"], ["write reasoning_gym:leg_counting"]),
                (["--env", "calculator:hard", "--port", "0"], ["write calculator"]),
                (["--env", "calculator", "--portal", "203.0.113.7"], ["203.0.113.7:8080 cannot be listened on"]),
                (["--env", world("Unprepared"), "--port", "0"], ["error: there is no clay", "hint: fetch some"]),
            ],
            2,
        ),
    )
    def test_a_mistake_is_named_with_its_fix(self, arguments, said):
        err = refused(*arguments)
        assert "Traceback" not in err
        assert all(words in err for words in said), err
        assert "hint: " in err

    def test_a_taken_port_is_named_with_its_fix(self, service):
        err = refused("--env", "calculator", "--port", str(service.port))
        assert f"127.0.0.1:{service.port} cannot be listened on: Address already in use" in err
        assert "choose another --port" in err

    def test_it_listens_on_loopback_alone_unless_told_otherwise(self, service):
        with open(f"/proc/{service.process.pid}/net/tcp") as file:
            listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
        assert [address for address in listening if address.endswith(f":{service.port:04X}")] == [
            f"0100007F:{service.port:04X}"
        ]


def test_json_of_the_protocol_is_what_the_json_module_reads(service):
    answer = service.post("get_env_profile", params={"split": "train"})
    assert json.loads(answer.content)["data"] == ["a", "b", "ü"]
