"""A 5x5 frozen lake in text: a game of up to six moves."""
