"""The `astune check` commands: whether what training relies on holds here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astune.cli._flags import Commands, DryRun, Set, With, WithAppworld, WithRay

check_app = Commands(help="Check what training relies on; nothing is trained.", no_args_is_help=True)


@check_app.command()
def numerics(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment to compare engine and trainer of.")],
    steps: Annotated[
        int, typer.Option("--steps", min=2, help="Steps; new weights are handed to the engine between two of them.")
    ] = 2,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Tasks a step, rollout.num_repeat episodes each.")] = 4,
    overrides: Set = None,
    with_: With = None,
    with_ray: WithRay = False,
    with_appworld: WithAppworld = False,
) -> int:
    """Compare the engine's log-probabilities with the trainer's, on real rollouts and without learning.

    Ends with status 1 where they are further apart than rounding explains, and names the likely cause.
    """
    from astune.cli._numerics import check_numerics
    from astune.launcher.companion import CompanionFlags

    flags = CompanionFlags(tuple(with_ or ()), with_ray, with_appworld)
    return check_numerics(conf, overrides or [], flags, steps=steps, tasks=tasks)


@check_app.command()
def template(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model as model.path names it, or a tokenizer's folder.")
    ],
) -> int:
    """Extend conversations behind every answer by the model's chat template, and compare with whole renders.

    Ends with status 1 where an extension differs; that a template rewrites history only costs tokens.
    """
    from astune.cli._templates import check_template_of

    return check_template_of(model)


@check_app.command()
def judge(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment whose judge is tried.")],
    tasks: Annotated[int, typer.Option("--tasks", min=2, help="Tasks whose reference answers are judged.")] = 4,
    labelled: Annotated[
        Path | None,
        typer.Option("--labelled", metavar="FILE.jsonl", help="Labelled answers, as `astune rubrics` reads them."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option("--calibrate", metavar="OUT.yaml", help="Only write what its rewards are worth in those labels."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="FIELD", help="Calibrate each group of tasks that this metadata field names.")
    ] = "",
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Try to get undeserved rewards from the judge, judge the same twice, and compare with labels where there are any.

    Ends with status 1 where a probe earns something, the same episode is rewarded differently, or a reference answer
    earns no more than a wrong one.
    """
    from astune.cli._judge_check import calibrate_judge_of, check_judge_of

    if calibrate is not None and dry_run is None:
        return calibrate_judge_of(conf, overrides or [], labelled, calibrate, by)
    return check_judge_of(conf, overrides or [], tasks=tasks, labelled=labelled, dry_run=dry_run is not None)
