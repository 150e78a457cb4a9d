"""An agent that is a program of its own and knows nothing of ASTuner."""
