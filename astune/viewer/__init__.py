"""Showing runs: pictures of what an episode recorded. Reads what a run stored, and changes nothing."""

from astune.viewer.pictures import forest_svg, timelines_svg
from astune.viewer.tree_picture import NamedRow, Segment, tree_svg

__all__ = ["NamedRow", "Segment", "forest_svg", "timelines_svg", "tree_svg"]
