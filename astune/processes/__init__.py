"""Child processes: how they are started, guarded, recorded and ended. What they are for is not known here.

    guarded, _guardian   any command; it ends with this process, and all that it started ends with it
    program              any command that runs once, and what it printed; it ends likewise
    worker, pool, tied   Python processes that answer calls; they end with this process
    forked               a copy of this process that answers calls; it ends with this process
    link                 the channel that calls and answers go over
    records, kill        what was started for this user, and ending it later (`astune --kill`)
    ending               ending one process, and how one has ended

Nothing is imported here: hosting an environment must not need psutil, which the records do.
"""
