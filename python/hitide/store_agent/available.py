"""How much memory can be taken without pushing anything out."""

import os

# For tests: as if there were no more than so many bytes.
TEST_VARIABLE = "HITIDE_TEST_AVAILABLE_BYTES"


def _read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def meminfo_bytes(text, name):
    """The number behind `name:` in kB lines of /proc/meminfo, in bytes; None where it is not."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == f"{name}:" and fields[1].isdigit():
            return int(fields[1]) << 10
    return None


def cgroup_room(limit, usage, stat):
    """What is left below a cgroup's limit, page cache that can be dropped counted as room; None:
    no limit, or not understood."""
    if not limit.strip().isdigit() or not usage.strip().isdigit():
        return None
    fields = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
    droppable = fields.get("inactive_file", "0")
    used = int(usage) - (int(droppable) if droppable.isdigit() else 0)
    return max(0, int(limit) - max(0, used))


def _cgroup_rooms():
    for line in _read("/proc/self/cgroup").splitlines():
        if not line.startswith("0::"):
            continue
        folder = line[3:]
        while True:
            base = f"/sys/fs/cgroup{folder.rstrip('/')}"
            room = cgroup_room(_read(f"{base}/memory.max"), _read(f"{base}/memory.current"),
                               _read(f"{base}/memory.stat"))
            if room is not None:
                yield room
            if folder in ("", "/"):
                return
            folder = os.path.dirname(folder)


def available_bytes():
    """The least of MemAvailable and the room in this process's memory cgroups; None: not known."""
    rooms = [meminfo_bytes(_read("/proc/meminfo"), "MemAvailable"), *_cgroup_rooms()]
    if os.environ.get(TEST_VARIABLE, "").isdigit():
        rooms.append(int(os.environ[TEST_VARIABLE]))
    known = [room for room in rooms if room is not None]
    return min(known) if known else None
