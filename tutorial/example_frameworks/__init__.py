"""The same agent in several frameworks: it has a calculator, and knows nothing of ASTuner."""
