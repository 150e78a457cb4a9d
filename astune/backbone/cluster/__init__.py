"""Training with another engine on a Ray cluster: what the backbones of verl and Trinity-RFT have in common.

The process that the user starts, in astune's environment:

    supervise.py    starts the engine's process in its own environment, and watches it
    run_server.py   receives reports over HTTP; run_writer.py  writes the run directory from them, and alone does so
    collected.py    reported groups until a step uses them; trained.py  the report of a step under the shared names
    weight_checks.py  whether weights moved where they should have; job.py  what is to be done,
    and work_order.py  the part of it for the engine's processes

Processes of the engine, in its environment, on Ray; `../verl` and `../trinity` are the rest of them:

    process.py      calls the engine; layers.py  whose keys make its configuration; ray_cluster.py  whose Ray it is
    reports.py      sends messages.py to the run server: groups, steps, ...; actors.py  reports that a process died
    groups.py       runs groups of episodes; handed_over.py  hands those of agents on other machines to the run server
    rows.py         groups as the engine's samples, and their weights; rates.py  the learning rate of verl's workers
    hooks.py        what is replaced in an engine is there, and changes of its modules

Without a GPU the engines need more: `../cpu_clusters`.
"""
