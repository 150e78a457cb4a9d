"""The Trinity-RFT backbone: Trinity explores and trains on a Ray cluster, and everything else is astune's.

What runs beside it is in `../cluster`; these modules run on Ray, in Trinity's environment, and import trinity.

    __main__.py    the process that starts Trinity's explorer and trainer, and waits for both
    settings.py    Trinity's configuration
    workflow.py    a group of episodes, on engine.py, as a workflow of Trinity's
    samples.py     groups as experiences, and the strategy that reads whole ones
    algorithm.py   the loss, and advantages that are there already
    explorer.py    trainer.py   Trinity's own, reporting to the run server; verl_0_9.py  what the trainer's verl refuses
    coordinator.py Trinity's own, which replaces runners that died
"""
