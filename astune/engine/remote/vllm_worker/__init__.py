"""Code that runs inside vLLM's workers. Its folder, and nothing else of astune, is on their path."""
