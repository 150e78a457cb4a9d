"""What attacks in the sandbox's tests begin with; `REACHED ...` shows that one got through."""

ATTEMPT = """
import ctypes, errno, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try:
        got = action()
    except BaseException as refusal:
        print(f"{name}: refused, {type(refusal).__name__}", flush=True)
    else:
        print(f"REACHED {name}: {got!r}", flush=True)
"""
