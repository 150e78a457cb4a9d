#!/bin/sh
# astune's stand-in for the command `ray`, put into .venv/bin where Ray is not installed: `ray stop` has nothing to stop
# there, and a command line that has it works. Installing Ray replaces it.
echo "ray ${1:-}: Ray is not installed in this environment (astune --kill=ray ends the Ray heads that astune started;" \
    "make env-verl and make env-trinity make environments with Ray)" >&2
[ "${1:-}" = stop ]
