"""An agent's program for the storm: conversations with faults, and as its result what it was answered.

Arguments: the calls of an episode, the seed, the share of the attempts that meet a fault.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter

from faulty_client import FaultyClient, converse

EX_TEMPFAIL = 75


async def main() -> None:
    name = json.load(sys.stdin)["task_id"]
    n_calls, seed, share = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    rng, met = random.Random(f"{seed} {name}"), Counter[str]()
    client = FaultyClient(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], rng, met, share=share)
    try:
        said = await converse(client, name, n_calls, rng)
    except (OSError, EOFError, ValueError):  # the gateway died, and the episode with it
        sys.exit(EX_TEMPFAIL)
    metrics = {fault: float(n) for fault, n in met.items()}
    sys.stdout.write(json.dumps({"final_answer": {"said": said, "met": metrics}}) + "\n")


asyncio.run(main())
