"""Flags that several commands have."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand, TyperGroup


class _Command(TyperCommand):
    """One whose help says nothing of the type of `--help`."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))


class _Group(TyperGroup):
    """The same for several commands."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))


class Commands(typer.Typer):
    """Commands whose flags are shown without a type."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, cls=_Command, **settings)


def _plain(option: Any) -> Any:
    if option is not None:
        option.metavar = " "
    return option


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

DryRun = Annotated[
    Optional[str],  # noqa: UP045 - as the run's --dry-run, so that `with_values` knows one --dry-run
    typer.Option("--dry-run", metavar=" ", help="Say what would be done, and do nothing."),
]
