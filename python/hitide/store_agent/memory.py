"""Memory of the cache's process, mapped here through its descriptors."""

import ctypes
import mmap
import os
import threading

from hitide.store_agent import frames

REGIONS_MAX = 4096


class Region:
    """One mapping; it stays while anything refers to this object."""

    def __init__(self, fd, offset, size):
        self.size = size
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE,
                              offset=offset)
        # Keeps the mapping's address valid: an mmap with an exported buffer cannot be closed.
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.base = ctypes.addressof(self._anchor)


class SegmentRegion:
    """Memory that is mapped as a segment of the client, which keeps it."""

    def __init__(self, base, size):
        self.base = base
        self.size = size


class Memory:
    """Regions by their number. Any thread."""

    def __init__(self):
        self._lock = threading.Lock()
        self._regions = {}

    def add(self, number, fd, offset, size, take=None):
        """Maps a region; the descriptor stays the caller's. With `take`, a function of descriptor
        and size that answers (address, code), the client does the mapping. Answers the region and
        the client's code; a region with another code than 0 is not kept."""
        if size == 0 or offset % mmap.ALLOCATIONGRANULARITY != 0:
            raise frames.RequestError(
                f"region {number}: {size} bytes from {offset}: the size must not be 0 and the "
                f"offset a multiple of {mmap.ALLOCATIONGRANULARITY}")
        # Beyond the end of the file an access would end this process.
        held = os.fstat(fd).st_size
        if offset + size > held:
            raise frames.RequestError(
                f"region {number}: {size} bytes from {offset}, but the descriptor has {held}")
        with self._lock:
            if number in self._regions or len(self._regions) >= REGIONS_MAX:
                raise frames.RequestError(f"region {number} is mapped already, or there are "
                                          f"{REGIONS_MAX} of them")
        code = 0
        if take is None:
            region = Region(fd, offset, size)
        else:
            if offset != 0 or size != held:
                raise frames.RequestError(
                    f"region {number}: a thin client takes whole files only, not {size} bytes from "
                    f"{offset} of {held}")
            base, code = take(fd, size)
            region = SegmentRegion(base, size)
        if code == 0:
            with self._lock:
                self._regions[number] = region
        return region, code

    def remove(self, number):
        with self._lock:
            region = self._regions.pop(number, None)
        if region is None:
            raise frames.RequestError(f"region {number} is not mapped")
        return region

    def resolve(self, places):
        """([address or 0, ...], regions in use): 0 where a place lies outside its region. The
        second answer keeps the mappings alive for as long as the caller holds it."""
        with self._lock:
            regions = {number: self._regions.get(number) for number in {p[0] for p in places}}
        addresses = []
        for number, offset, size in places:
            region = regions[number]
            inside = region is not None and offset <= region.size and size <= region.size - offset
            addresses.append(region.base + offset if inside else 0)
        return addresses, regions
