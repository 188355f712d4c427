"""python -m hitide.store_agent PARENT_PID: serves the control connection on descriptor 3.

Not for people: the cache starts it (docs/design/mooncake_agent.md).
"""

import os
import socket
import sys

from hitide.store_agent import process

CONTROL_FD = 3


def open_store():
    """(the guarded client, None), or (None, why there is none)."""
    try:
        import mooncake.store as package  # pylint: disable=import-outside-toplevel
        from hitide.store_agent.guarded_store import GuardedStore
        return GuardedStore(package), None
    except Exception as error:  # pylint: disable=broad-except
        return None, (f"{sys.executable} cannot import mooncake.store "
                      f"({type(error).__name__}: {error})")


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    process.die_with_parent(int(sys.argv[1]))
    process.close_inherited(CONTROL_FD + 1)
    store, missing = open_store()
    from hitide.store_agent.server import Server
    Server(store, missing).serve_control(socket.socket(fileno=CONTROL_FD))
    return 0


if __name__ == "__main__":
    STATUS = 1
    try:
        STATUS = main()
    finally:
        # The client's threads, and calls in other lanes that may hang, must not hold up the end.
        sys.stderr.flush()
        os._exit(STATUS)
