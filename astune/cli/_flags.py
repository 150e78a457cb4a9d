"""Flags that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from astune.cli._errors import exit_with


class _Command(TyperCommand):
    """A whose help says nothing of the type of `--help`."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))


class _Group(TyperGroup):
    """The same for several commands."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))


class Commands(typer.Typer):
    """Commands whose flags are shown without a type, under one heading of the help page."""

    def __init__(self, heading: str | None = None, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)
        self._heading = heading

    def command(self, name: str | None = None, *, interrupted: str = "", **settings: Any) -> Any:
        """Make a command of a function, which does the work and returns the exit status. `interrupted` is a hint on
        what to do after Ctrl-C."""
        register = super().command(name, cls=_Command, **{"rich_help_panel": self._heading, **settings})

        def made(work: Callable[..., int]) -> Callable[..., int]:
            @wraps(work)
            def command(**flags: Any) -> NoReturn:
                exit_with(partial(work, **flags), interrupted=interrupted)

            register(command)
            return work

        return made


def _plain(option: Any) -> Any:
    if option is not None:
        option.metavar = " "
    return option


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one configuration key, such as trainer.optim.lr=1e-5; repeatable."
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="NAME=COMMAND",
        help="Start a service beside the run, by a shell command; NAME alone: one of astune.companions; repeatable.",
    ),
]
WithRay = Annotated[
    bool, typer.Option("--with-ray", metavar=" ", help="Start a Ray head on this machine beside the run.")
]
WithAppworld = Annotated[
    bool, typer.Option("--with-appworld", metavar=" ", help="Start AppWorld's environment service beside the run.")
]

DryRun = Annotated[
    str | None,
    typer.Option("--dry-run", metavar=" ", help="Print what would be done, and do nothing."),
]
Plan = Annotated[
    str | None,
    typer.Option(
        "--dry-run",
        metavar="[=full]",
        help="Print the plan and the resolved configuration, and start nothing; --dry-run=full adds the whole "
        "configuration of verl or Trinity-RFT.",
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Folder of a run; the folder or name of an experiment stands for its newest run."
    ),
]


def plan_of(value: str | None) -> Literal["short", "full"] | None:
    if value in (None, "short", "full"):
        return value
    from astune.schema import ConfigError

    raise ConfigError(f"--dry-run={value} is unknown", hint="write --dry-run, or --dry-run=full")


def with_backbone(overrides: list[str] | None, backbone: str | None) -> list[str]:
    return [*(overrides or []), *([f"backbone={backbone}"] if backbone else [])]
