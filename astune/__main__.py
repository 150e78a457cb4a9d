"""`python -m astune`: the `astune` command of this interpreter's environment."""

from astune.cli import main

main()
