"""The reference of mooncake_rows.cc: the wheel's own client, called in a Python process.

    PYTHON bench/mooncake_bare.py MASTER DAEMON BYTES PARENT_PID

DAEMON is - for a real client. Speaks in lines on descriptor 3: `ready`, then one answer, `ok
SECONDS` or `error WHY`, to each of

    put ROUND COUNT SIZE BATCH   put_grouped ROUND COUNT SIZE BATCH   get ROUND COUNT SIZE BATCH
    exists COUNT   clear

put_grouped gives each object a group of its own, as pages have one.

Only the calls of the client themselves are timed.
"""

import mmap
import ctypes
import os
import socket
import sys
import time

SOCKET_FD = 3
PR_SET_PDEATHSIG = 1


class Bare:
    """A client with memory that it may use, filled with bytes that nothing compresses."""

    def __init__(self, package, master, daemon, size):
        self.package = package
        self.store = package.MooncakeDistributedStore()
        if daemon == "-":
            code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master)
            self.map = mmap.mmap(-1, size)
            self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        else:
            code = self.store.setup_dummy(0, 0, daemon)
            self.base = package.MooncakeHostMemAllocator().alloc(size) if code == 0 else 0
            code = code or self.store.register_buffer(self.base, size)
        if code != 0:
            raise RuntimeError(f"set-up answered {code}")
        ctypes.memmove(self.base, os.urandom(size), size)

    @staticmethod
    def keys(round_number, count):
        return [f"bare/{round_number}/{i:06}" for i in range(count)]

    def move(self, call, round_number, count, size, batch, good):
        keys = self.keys(round_number, count)
        batches = [(keys[at:at + batch], [self.base + size * i for i in range(at, at + batch)],
                    [size] * batch) for at in range(0, count, batch)]
        seconds = 0.0
        for part in batches:
            start = time.perf_counter()
            answers = call(*part)
            seconds += time.perf_counter() - start
            if any(answer != good for answer in answers):
                raise RuntimeError(f"answered {answers}")
        return seconds

    def put_grouped(self, keys, addresses, sizes):
        config = self.package.ReplicateConfig()
        config.group_ids = [f"group/{key}" for key in keys]
        return self.store.batch_put_from(keys, addresses, sizes, config)

    def carry_out(self, words):
        name, numbers = words[0], [int(word) for word in words[1:]]
        if name == "put":
            return self.move(self.store.batch_put_from, *numbers, 0)
        if name == "put_grouped":
            return self.move(self.put_grouped, *numbers, 0)
        if name == "get":
            return self.move(self.store.batch_get_into, *numbers, numbers[2])
        if name == "exists":
            start = time.perf_counter()
            for _ in range(numbers[0]):
                self.store.batch_is_exist(["bare/none"])
            return time.perf_counter() - start
        if name == "clear":
            code = self.store.remove_all(True)
            if code < 0:
                raise RuntimeError(f"remove_all answered {code}")
            return 0.0
        raise RuntimeError(f"there is no command {name!r}")


def main():
    master, daemon, size, parent = sys.argv[1:5]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    if os.getppid() != int(parent):
        return
    import mooncake.store as package  # pylint: disable=import-outside-toplevel
    bare = Bare(package, master, daemon, int(size))
    connection = socket.socket(fileno=SOCKET_FD)
    connection.sendall(b"ready\n")
    for line in connection.makefile("r"):
        try:
            answer = f"ok {bare.carry_out(line.split()):.9f}"
        except Exception as error:  # pylint: disable=broad-except
            answer = f"error {error}"
        connection.sendall(f"{answer}\n".encode())


if __name__ == "__main__":
    main()
    os._exit(0)
