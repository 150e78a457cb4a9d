"""Training with another engine on a Ray cluster: what the backbones of verl and Trinity-RFT have in common.

this process, astune's environment             processes on Ray, the engine's environment
------------------------------------           ---------------------------------------------
supervise.py  starts and watches        ---->  ../verl, ../trinity   the engine, at its public extension points
keeper.py     writes the run's folder   <----  reports.py            what happened: episodes, groups, steps
job.py        what is to be done               rows.py               groups as the engine's samples
place.py      where the environment is         layers.py             whose keys make the engine's configuration
                                               actors.py             what notices that a process died
                                               after_import.py       where versions of today need a change
"""
