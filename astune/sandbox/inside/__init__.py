"""What runs on the other side of a sandbox's wall: standard library only, so that a plain interpreter starts at once.

Nothing here imports astune. Of astune, the sandbox imports nothing from here but constants and paths: these files are
run by an interpreter of their own, whose environment and memory have nothing of the parent's. Processes that are forked
from an environment's (`astune/environments/_appworld_engine.py`) confine themselves by `confine.py`.
"""
