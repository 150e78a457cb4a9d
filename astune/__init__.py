"""ASTuner trains the language model behind an agent."""
