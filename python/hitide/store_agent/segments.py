"""Memory of a thin client: what it hands out, and memory of the cache's in its place.

A thin client takes only segments that it has handed out itself. Each is one memory file, mapped
here, that it sends to the store's daemon when it is registered. The cache uses such a segment as it
is, or has the file behind it exchanged for one of its own, same size, same address: an adoption.
That leans on the client's insides, so that the cache tries it with real bytes before it trusts it.

One thread: that of the control connection.
"""

import ctypes
import mmap
import os

from hitide.store_agent import available, frames

SEGMENT_NAME = "mooncake_shm"
MAP_FIXED = 0x10
PATTERN_BYTES = 4096
# What must be left over by a segment, all of whose bytes the client touches.
RESERVE_BYTES = 64 << 20

# For tests: adoptions after the first N leave the client's own file in its place, as if the
# exchange had no effect any more.
TEST_VARIABLE = "HITIDE_TEST_ADOPTIONS_MAX"

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]


class SegmentError(Exception):
    """The segment is not what it was thought to be."""


def segment_fd(address):
    """The descriptor of the memory file that is mapped at this address."""
    inode = None
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.split()
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            if begin <= address < end and SEGMENT_NAME in line:
                inode = int(fields[4])
                break
    for name in os.listdir("/proc/self/fd"):
        try:
            if (inode is not None and os.stat(f"/proc/self/fd/{name}").st_ino == inode and
                    SEGMENT_NAME in os.readlink(f"/proc/self/fd/{name}")):
                return int(name)
        except OSError:
            continue  # closed meanwhile
    raise SegmentError("the client's segment has no descriptor here")


def _identity(fd):
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _mark(address, size):
    """Fills both ends with bytes that nothing else has: should the daemon still be shown this file
    after the exchange, the cache will see that they are not its own."""
    pattern = os.urandom(min(size, PATTERN_BYTES))
    for at in (address, address + size - len(pattern)):
        ctypes.memmove(at, pattern, len(pattern))


class Segments:
    """The memory files of one thin client."""

    def __init__(self, store, allocator):
        # `allocator` hands out and takes back what `store` registers.
        self._store = store
        self._allocator = allocator
        self._handed_out = {}  # number: (address, size, identity of its file)
        self._adopted = set()  # addresses
        self._registered = set()  # addresses
        limit = os.environ.get(TEST_VARIABLE, "")
        self._adoptions_left = int(limit) if limit.isdigit() else None

    def allocate(self, number, size):
        """(descriptor, 0) of zero bytes; the descriptor stays the client's. (-1, code)."""
        if number in self._handed_out:
            raise frames.RequestError(f"segment {number} is handed out already")
        address = self._segment(size)
        if not address:
            return -1, frames.NO_MEMORY
        try:
            fd = segment_fd(address)
        except SegmentError:
            self._allocator.free(address)
            return -1, frames.NOT_ADOPTABLE
        self._handed_out[number] = (address, size, _identity(fd))
        return fd, 0

    def free(self, number):
        """Takes back what was handed out."""
        if number not in self._handed_out:
            raise frames.RequestError(f"segment {number} is not handed out")
        address = self._handed_out[number][0]
        if address in self._registered:
            raise frames.RequestError(f"segment {number} is registered")
        del self._handed_out[number]
        self._allocator.free(address)

    def take(self, fd, size):
        """(address, the client's code): the whole memory file behind `fd` as a registered segment,
        where it was handed out here as it is, else by adoption."""
        for address, length, identity in self._handed_out.values():
            if identity == _identity(fd) and length == size:
                return address, self._register(address, size)
        address = self._segment(size)
        if not address:
            return 0, frames.NO_MEMORY
        try:
            self._exchange(address, fd, size)
            code = self._register(address, size)
        except SegmentError:
            code = frames.NOT_ADOPTABLE
        if code != 0:
            self._allocator.free(address)
            return 0, code
        self._adopted.add(address)
        return address, 0

    def drop(self, address):
        """Ends a registration; what was adopted is let go of. The client's code."""
        code = int(self._store.unregister_buffer(address))
        self._registered.discard(address)
        if address in self._adopted:
            self._adopted.discard(address)
            self._allocator.free(address)
        return code

    def _register(self, address, size):
        code = int(self._store.register_buffer(address, size))
        if code == 0:
            self._registered.add(address)
        return code

    def _segment(self, size):
        """The address of a new segment, or 0. The client touches all of its bytes at once: with too
        little memory the system would end a process, and not necessarily this one."""
        room = available.available_bytes()
        if size == 0 or (room is not None and size + RESERVE_BYTES > room):
            return 0
        try:
            return int(self._allocator.alloc(size) or 0)
        except RuntimeError:
            return 0

    def _exchange(self, address, fd, size):
        segment = segment_fd(address)
        _mark(address, size)
        if self._adoptions_left is not None:
            self._adoptions_left -= 1
            if self._adoptions_left < 0:
                return
        os.dup2(fd, segment, inheritable=False)
        mapped = _LIBC.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE,
                            mmap.MAP_SHARED | MAP_FIXED, segment, 0)
        if mapped != address:
            raise SegmentError("the memory could not be mapped where the segment was")
