"""Training adapters in place of all weights."""
