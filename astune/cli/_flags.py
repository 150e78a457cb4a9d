"""Flags that several commands have."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

Set = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads Optional
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key, as trainer.optim.lr=1e-5; repeatable."),
]
With = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--with",
        metavar="NAME=COMMAND",
        help="Start a companion service first; NAME alone starts one of astune.companions; repeatable.",
    ),
]
WithRay = Annotated[bool, typer.Option("--with-ray", metavar=" ", help="Start a Ray head first.")]
WithAppworld = Annotated[
    bool, typer.Option("--with-appworld", metavar=" ", help="Start AppWorld's environment service first.")
]
