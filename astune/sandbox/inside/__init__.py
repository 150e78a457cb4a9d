"""Code that runs inside the sandbox: standard library only, so that a plain interpreter starts at once.

Nothing here imports astune. The rest of the sandbox imports only constants and paths from here: these files are run by
a separate interpreter, whose environment and memory share nothing with the parent's. Processes that are forked from an
environment's (`astune/environments/_appworld_engine.py`) confine themselves by `confine.py`.
"""
