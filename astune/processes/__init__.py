"""Child processes: starting, guarding, recording and ending them, whatever their purpose.

    guarded, _guardian    any command; it ends with this process, together with its children
    program               any command that runs once, and its output; it ends likewise
    worker, pool, tied    Python processes that answer calls; they end with this process
    forked                a copy of this process that answers calls; it ends with this process
    link                  the channel that calls and answers go over
    records, kill         processes started for this user, and ending them later (`astune --kill`)
    ending                ending one process, and describing how it ended

Nothing is imported here: hosting an environment must not require psutil, which the records do.
"""
