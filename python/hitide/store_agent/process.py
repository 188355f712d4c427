"""What a helper process does first, so that it never outlives the one that started it."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent):
    """Ends this process when `parent` ends, also when it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def close_inherited(first):
    """Closes all descriptors from `first` on."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= first:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own
