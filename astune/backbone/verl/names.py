"""Names that both sides of the verl backbone know."""

PREFIX = "astune_"
"""Before the name of a mode of verl's trainer, that of ours."""
MODES = ("sync",)
"""Of verl's, those that the books are right in."""
