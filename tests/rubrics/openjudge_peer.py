"""Learns rubrics with py-openjudge and ranks held-out answers by them; runs in `.venv-openjudge`.

python openjudge_peer.py URL LABELS.jsonl FRESH.jsonl OUT.json
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from openjudge.generator.iterative_rubric.generator import (  # pyright: ignore[reportMissingImports]
    IterativeListwiseRubricsGeneratorConfig,
    IterativeRubricsGenerator,
)
from openjudge.models.openai_chat_model import OpenAIChatModel  # pyright: ignore[reportMissingImports]


def rows_of(path: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [
        {
            "query": row["main_query"],
            "responses": [each["answer"] for each in row["metadata"]["candidates"]],
            "label_rank": [each["rank"] for each in row["metadata"]["candidates"]],
        }
        for row in rows
    ]


async def main(url: str, labels: str, fresh: str) -> dict[str, Any]:
    model = OpenAIChatModel(model="m", api_key="none", base_url=url)
    config = IterativeListwiseRubricsGeneratorConfig(grader_name="rubrics", model=model, enable_categorization=True)
    grader = await IterativeRubricsGenerator(config).generate(rows_of(labels))
    found = []
    for row in rows_of(fresh):
        result = await grader.aevaluate(
            query=row["query"],
            responses="\n".join(f"Response {n}:\n{text}\n" for n, text in enumerate(row["responses"], start=1)),
            num_responses=len(row["responses"]),
        )
        found.append({"labels": row["label_rank"], "ranks": getattr(result, "rank", None), "said": str(result)[:300]})
    return {"rubrics": grader.kwargs["rubrics"], "graded": found}


*where, out = sys.argv[1:]
Path(out).write_text(json.dumps(asyncio.run(main(*where))))
