"""Pictures of a served model's conversations, and of the flywheel's turn that learned from them.

`make viewer-pictures` makes them: users ask the tests' small model through `astune serve`, correct its answers, and
`astune flywheel` takes a turn.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from astune_command import astune, start
from flywheel_stage import KNOWN, TAUGHT, half_trained, make_world
from test_page_pictures import SIZE, taken
from viewer_stage import serving

pytestmark = pytest.mark.slow
ANSWERS = KNOWN | TAUGHT
COMMENTS = ["That is not what I asked for", "Please read the question", ""]
CLIENTS = ("web", "app", "phone", "desk")  # one client that rates so much within a minute is taken for a flood
N_USERS = 60


@contextmanager
def served(folder: Path, model: str) -> Iterator[tuple[str, list[str]]]:
    """`astune serve`: its address, and the keys of its clients."""
    limits = ("rollout.temperature=0", "rollout.max_response_length_in_one_turn=8", "rollout.max_model_len=256")
    words = [word for each in limits for word in ("--set", each)]
    words += [word for client in CLIENTS for word in ("--client", client)]
    server = start(folder, "serve", model, "--port", "0", *words, together=True)
    try:
        assert server.stdout is not None
        told = "".join(itertools.takewhile(lambda line: "curl" not in line, server.stdout))
        url = re.search(r"OPENAI_BASE_URL=(\S+)", told)
        assert url, told
        yield url[1], re.findall(r"^\w+: export OPENAI_API_KEY=(\S+)", told, re.MULTILINE)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def ask(url: str, key: str, user: int, seeded: random.Random) -> None:
    """Two questions of a user, the second one in the same conversation for one user in five, and what is thought."""
    client = httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=60)
    messages: list[dict[str, str]] = []
    for number in range(2):
        what = seeded.choice([*KNOWN, *TAUGHT, *TAUGHT])
        goes_on = number > 0 and user % 5 == 0
        asked = {"role": "user", "content": f"Name {what} ({seeded.randrange(16)})."}
        messages = [*messages, asked] if goes_on else [asked]
        headers = {"x-session-id": f"user{user}-{0 if goes_on else number}"}
        body = {"model": "any", "messages": messages, "temperature": 0, "user": f"user{user}"}
        said = client.post(f"{url}/chat/completions", json=body, headers=headers).raise_for_status().json()
        answer = said["choices"][0]["message"]
        messages.append({"role": "assistant", "content": answer["content"]})
        rated = {"conversation_id": said["id"], "user": f"user{user}", "rating": 1}
        if answer["content"].strip() != ANSWERS[what]:
            rated |= {"rating": -1, "corrected_answer": ANSWERS[what], "comment": seeded.choice(COMMENTS)}
        client.post(f"{url.removesuffix('/v1')}/feedback", json=rated).raise_for_status()


def test_conversations_and_a_turn_of_the_flywheel_have_their_pictures(page, tiny_folder, tmp_path):
    if "VIEWER_PICTURES" not in os.environ:
        pytest.skip("a model is trained, served and taught for the pictures alone: make viewer-pictures")
    folder = Path(os.environ["VIEWER_PICTURES"])
    half = tmp_path / "half"
    half.mkdir()
    with ThreadPoolExecutor() as elsewhere:  # Playwright holds this thread's event loop
        model = elsewhere.submit(half_trained, half, tiny_folder).result()
    make_world(tmp_path, model)
    shutil.copytree(model, tmp_path / "colours")
    seeded = random.Random(0)
    with served(tmp_path, "colours") as (url, keys):
        for user in range(N_USERS):
            ask(url, keys[user % len(keys)], user, seeded)
    astune(tmp_path, "flywheel", "wheel.yaml", timeout_s=600)

    page.set_viewport_size(SIZE)
    with serving(tmp_path / "launcher_record", store=tmp_path / "feedback.sqlite3") as viewer:
        address = f"{str(viewer.base_url).rstrip('/')}/"
        page.goto(f"{address}#view=served&session=user5-0")
        page.locator(".talk .message").first.wait_for()
        taken(page, folder / "viewer-conversations.png")
        [run] = [run for run in viewer.get("/api/runs").json() if "flywheel" in run["notes"]["tags"]]
        page.goto(f"{address}api/turn?run={run['run']}")
        page.locator("h1").first.wait_for()
        taken(page, folder / "viewer-turn.png")
