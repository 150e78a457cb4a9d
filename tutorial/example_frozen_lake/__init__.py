"""The 4x4 frozen lake in text: a game of up to six moves."""
