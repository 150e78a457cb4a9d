"""Engine against trainer: how far their log-probabilities are apart on real rollouts, and why.

Importing this package does not import torch; `check_numerics` is in its `check` module.
"""
