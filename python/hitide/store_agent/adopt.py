"""Makes memory of the cache's a segment of a thin client.

A thin client takes only segments that it has handed out itself: each is one memory file, mapped
here, that it sends to the store's daemon when it is registered. Before that the file behind such a
segment is exchanged for the cache's: same size, same address. This leans on the client's insides,
so that the cache tries it with real bytes before it trusts it.
"""

import ctypes
import mmap
import os

SEGMENT_NAME = "mooncake_shm"
MAP_FIXED = 0x10
MAP_FAILED = ctypes.c_void_p(-1).value

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]


class AdoptionError(Exception):
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
    raise AdoptionError("the client's segment has no descriptor here")


def adopt(store, fd, size):
    """(address, the client's code): the whole memory file behind `fd`, as a registered segment."""
    address = store.alloc_from_mem_pool(size)
    if not address:
        raise AdoptionError(f"the client has no segment of {size} bytes to exchange")
    segment = segment_fd(address)
    os.dup2(fd, segment, inheritable=False)
    mapped = _LIBC.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE,
                        mmap.MAP_SHARED | MAP_FIXED, segment, 0)
    if mapped != address:
        raise AdoptionError("the memory could not be mapped where the segment was")
    return address, int(store.register_buffer(address, size))
