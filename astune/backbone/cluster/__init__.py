"""Training with another engine on a Ray cluster: what the backbones of verl and Trinity-RFT have in common.

The process that the user starts, in astune's environment:

    supervise.py    starts the engine's process in its own environment, and watches it
    keeper.py       hears what happens, and is the only one who writes the run's folder
    job.py          what is to be done; evidence.py  whether weights moved where they should have

Processes of the engine, in its environment, on Ray; `../verl` and `../trinity` are the rest of them:

    process.py      calls the engine; layers.py  whose keys make its configuration; ray_cluster.py  whose Ray it is
    reports.py      tells the keeper: episodes, groups, steps; actors.py  that a process died
    rows.py         groups as the engine's samples, and their weights
    hooks.py        what is replaced in an engine is there; after_import.py  changes of its modules

Without a GPU the engines need more: `../cpu_clusters`.
"""
