"""The `astune check` commands: whether what training relies on holds here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astune.cli._flags import Commands, DryRun, Set, With, WithAppworld, WithRay

check_app = Commands(help="Check the numerics, the chat template or the judge before training.", no_args_is_help=True)


@check_app.command()
def numerics(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="Experiment whose engine and trainer are compared.")],
    steps: Annotated[
        int,
        typer.Option("--steps", min=2, metavar="N", help="Number of steps; the engine loads new weights between them."),
    ] = 2,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, metavar="N", help="Tasks per step, each with rollout.num_repeat episodes.")
    ] = 4,
    overrides: Set = None,
    with_: With = None,
    with_ray: WithRay = False,
    with_appworld: WithAppworld = False,
) -> int:
    """Compare the engine's log-probabilities with the trainer's on real rollouts, without training.

    The exit status is 1 if they differ by more than rounding explains; the likely cause is then printed.
    """
    from astune.cli._numerics import check_numerics
    from astune.launcher.companion import CompanionFlags

    flags = CompanionFlags(tuple(with_ or ()), with_ray, with_appworld)
    return check_numerics(conf, overrides or [], flags, steps=steps, tasks=tasks)


@check_app.command()
def template(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A value of model.path, or the folder of a tokenizer.")],
) -> int:
    """Check that conversations extended turn by turn have the tokens of a whole render by the model's chat template.

    The exit status is 1 if they differ. A template that rewrites earlier messages is reported, and only costs tokens.
    """
    from astune.cli._templates import check_template_of

    return check_template_of(model)


@check_app.command()
def judge(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="Experiment whose judge is tested.")],
    tasks: Annotated[
        int, typer.Option("--tasks", min=2, metavar="N", help="Number of tasks whose reference answers are judged.")
    ] = 4,
    labelled: Annotated[
        Path | None,
        typer.Option(
            "--labelled",
            metavar="FILE.jsonl",
            help="Labelled answers to compare the rewards with, in the format of `astune rubrics`.",
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate", metavar="OUT.yaml", help="Instead write a calibration of the rewards to those labels."
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option("--by", metavar="FIELD", help="Metadata field by which tasks are grouped for the calibration."),
    ] = "",
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Test the judge: attacks that must earn nothing, judging twice, and agreement with labelled answers.

    The exit status is 1 if an attack raises the reward, if one episode gets two different rewards, or if a reference
    answer earns no more than a wrong one.
    """
    from astune.cli._judge_check import calibrate_judge_of, check_judge_of

    if calibrate is not None and dry_run is None:
        return calibrate_judge_of(conf, overrides or [], labelled, calibrate, by)
    return check_judge_of(conf, overrides or [], tasks=tasks, labelled=labelled, dry_run=dry_run is not None)
