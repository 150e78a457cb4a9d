"""The engine in this process: a scheduler over slots, models as transformers loads them, and compiled CPU kernels."""
