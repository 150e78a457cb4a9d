"""Python reads this file when it starts, in each process of a run of Trinity without a GPU."""

from astune.backbone.cpu_clusters.trinity_on_cpu import install

install()
