"""Tasks made from documents and from a few examples, each verified before it is kept."""

from astune.data_generator.draft import ANSWER, Draft
from astune.data_generator.generation import Made, Material, OnProgress, make_tasks, read_material
from astune.data_generator.task_files import held_out_beside, line_of, write_tasks
from astune.data_generator.variations import Example

__all__ = [
    "ANSWER",
    "Draft",
    "Example",
    "Made",
    "Material",
    "OnProgress",
    "held_out_beside",
    "line_of",
    "make_tasks",
    "read_material",
    "write_tasks",
]
