"""Python reads this file when it starts, in each process of a run of Trinity without a GPU."""

from astune.backbone.trinity.cpu import install

install()
