"""The verl backbone: verl trains on a Ray cluster, and everything else is astune's.

What runs beside it is in `../cluster`; these modules run on Ray, in verl's environment, and import verl.

    __main__.py    the process that calls verl's run_ppo
    settings.py    verl's configuration, with megatron.py
    workers.py     groups of episodes, on engine.py, as verl's agent loops
    estimator.py   advantages, which ../cluster/rows.py has made; loss.py  terms that verl does not weight by token
    trainer.py     verl's trainers, which report to the run server; sampler.py gives a step its own groups
"""
