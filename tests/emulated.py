"""A processor with AVX512 or AMX, for the tests of the compiled sources on one that has neither."""

from __future__ import annotations

from pathlib import Path

EMULATED = "ASTUNE_EMULATED"
"""The variable that names one of `PROCESSORS`; not with pytest-xdist, whose workers import the sources first."""
PROCESSORS = {"avx512": [], "amx": ["-DEMULATE_AMX"]}
_HEADER = Path(__file__).with_name("emulated_avx512.h")
_FLAGS = "avx512f avx512bw avx512_bf16 avx512_vnni"


def emulate(processor: str) -> None:
    """Compile the sources for one of `PROCESSORS` from here on, before a module that uses them is imported."""
    from astune.engine import compiled

    flags = f"{compiled.processor()} {_FLAGS}"
    compiled.processor = lambda: flags
    # Without -O3 gcc takes seconds in place of minutes for the functions that stand for instructions.
    compiled._FLAGS += ["-O1", "-Wno-psabi", "-include", str(_HEADER), *PROCESSORS[processor]]

    from astune.engine.local import device

    device._cpu_linear.takes_bfloat16 = lambda: True
