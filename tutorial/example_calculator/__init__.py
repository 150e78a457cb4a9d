"""Word problems with a calculator: the first thing to run."""
