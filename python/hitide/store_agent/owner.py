"""python -m hitide.store_agent.owner PARENT_PID: owns a segment of the store.

Its settings come as name=value lines on standard input, ended by an empty line; it answers
`ready HOST:PORT`, or `failed CODE` and ends. It is never killed for a slow call: when standard
input closes it unmounts its segment and ends. A line `clear` removes every object of the store and
is answered with `cleared COUNT`: for tests.
"""

import os
import sys

from hitide.store_agent import process

DEFAULTS = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
            "device_name": "", "tenant_id": "default"}


def read_settings(lines):
    """name=value lines up to an empty one."""
    settings = dict(DEFAULTS)
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            break
        name, _, value = line.partition("=")
        settings[name] = value
    return settings


def serve(store, lines, answer):
    """Until the lines end."""
    for line in lines:
        if line.strip() == "clear":
            answer(f"cleared {int(store.remove_all(True))}")


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    process.die_with_parent(int(sys.argv[1]))
    process.close_inherited(3)
    from mooncake.store import MooncakeDistributedStore  # pylint: disable=import-outside-toplevel
    settings = read_settings(sys.stdin)
    store = MooncakeDistributedStore()
    code = store.setup(settings["local_hostname"], settings["metadata_server"],
                       int(settings["global_segment_size"]), 0, settings["protocol"],
                       settings["device_name"], settings["master_server_address"],
                       tenant_id=settings["tenant_id"])

    def answer(text):
        print(text, flush=True)

    if code != 0:
        answer(f"failed {code}")
        return 1
    answer(f"ready {store.get_hostname()}")
    serve(store, sys.stdin, answer)
    store.close()
    return 0


if __name__ == "__main__":
    STATUS = 1
    try:
        STATUS = main()
    finally:
        sys.stderr.flush()
        os._exit(STATUS)
