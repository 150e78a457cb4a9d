"""Learning from finished episodes: advantages, the one policy loss, prefix-tree batches, the optimiser step.

Importing this package does not import torch; `PolicyTrainer` and the rest live in its modules.
"""
