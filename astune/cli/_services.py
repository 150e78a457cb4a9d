"""Companions without a run: `astune --with-appworld` starts the service and keeps it until Ctrl-C."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from astune.app.beside import started
from astune.app.console import Console
from astune.app.interrupts import Interrupts, until_interrupted
from astune.config import load_config
from astune.launcher.companion import CompanionFlags, companions_of
from astune.schema import ConfigError


def keep_services(flags: CompanionFlags, overrides: Sequence[str], *, dry_run: bool = False) -> int:
    """Start the companions and end them at Ctrl-C. Raises CompanionError if one could not be started, or died."""
    if flags.ray:
        raise ConfigError(
            "--with-ray needs --conf: the Ray head's token is known to the run that it is started for",
            hint="for a cluster that outlives runs: RAY_AUTH_MODE=token ray start --head, and RAY_ADDRESS for each run",
        )
    console = Console()
    config = load_config(None, overrides)
    # Without a run none of them can be done without.
    services = [replace(companion, needed=True) for companion in companions_of(flags, config)]
    if dry_run:
        for service in services:
            console.say(f"{service.name}: {shlex.join(service.command)}")
        return 0
    with Interrupts() as interrupts, started(services, config.record_dir.resolve() / "services", console) as beside:
        if not beside.names:
            return 0  # all of them answered already, which has been printed
        try:
            console.say(f"until Ctrl-C: {', '.join(beside.names)}; output in {beside.folder}")
            interrupts.run(beside.guard(until_interrupted()))
        except KeyboardInterrupt:  # how one ends it
            return 0
    return 0
