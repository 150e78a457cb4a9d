"""The verl backbone: verl trains on a Ray cluster, and everything else is astune's.

    this process, astune's environment           processes on Ray, verl's environment
    ------------------------------------         --------------------------------------------------
    train.py     starts and watches        ---->  __main__.py   verl's configuration, Ray, verl's run_ppo
    keeper.py    writes the run's folder   <----  reports.py    what happened: episodes, groups, steps
                                                  workers.py    groups of episodes, on engine.py
                                                  rows.py       groups as verl's trajectories
                                                  trainer.py    verl's trainers, with our books

Only modules of the right column import verl.
"""
