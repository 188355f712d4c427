"""A double of Mooncake's client, traps included, and the cache's side of a connection to an agent:
what the tests of the store agent share."""

import ctypes
import http.server
import importlib
import os
import re
import socket
import sys
import threading
import types

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

frames = importlib.import_module("hitide.store_agent.frames")
guarded_store = importlib.import_module("hitide.store_agent.guarded_store")
memory = importlib.import_module("hitide.store_agent.memory")
server = importlib.import_module("hitide.store_agent.server")

# Where the store would be: something that takes connections.
LISTENER = socket.create_server(("127.0.0.1", 0), backlog=1024)
SERVER = f"127.0.0.1:{LISTENER.getsockname()[1]}"
OPTIONS = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
           "device_name": "", "master_server_address": SERVER}


class ReplicateConfig:
    def __init__(self):
        self.group_ids = None


class Client:
    """Mooncake's client, as far as the agent uses it. Calls that would crash the real one, or lie,
    fail the test."""

    def __init__(self, world):
        self.world = world
        self.open = False

    def setup(self, *args, **settings):
        known = self.world.known_settings
        if known is None or not set(settings) <= known:
            raise TypeError("setup(): incompatible function arguments")
        self.world.setups.append((args, settings))
        self.open = self.world.setup_code == 0
        return self.world.setup_code

    def _enter(self, call, keys, addresses=(), sizes=()):
        assert self.open, "a call before set-up crashes the client"
        assert keys, "a call without items"
        assert all(isinstance(key, bytes) and key for key in keys)
        assert 0 not in addresses, "a null pointer"
        assert 0 not in sizes, "a size of zero"
        if call in ("get", "put"):
            assert len(set(keys)) == len(keys), "duplicates in a batch"
        self.world.calls.append((call, list(keys)))
        if call in self.world.hooks:
            return self.world.hooks[call]()
        answer = self.world.answers.pop(call, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def batch_is_exist(self, keys):
        return self._enter("exists", keys) or [int(key in self.world.objects) for key in keys]

    def batch_put_from(self, keys, addresses, sizes, config=None):
        scripted = self._enter("put", keys, addresses, sizes)
        if config is not None:
            assert len(config.group_ids) == len(keys)
            self.world.groups.update(zip(keys, config.group_ids))
        if scripted is not None:
            return scripted
        for key, address, size in zip(keys, addresses, sizes):
            self.world.objects.setdefault(key, ctypes.string_at(address, size))
        return [0] * len(keys)

    def batch_get_into(self, keys, addresses, sizes):
        scripted = self._enter("get", keys, addresses, sizes)
        return scripted or [self._get(*item) for item in zip(keys, addresses, sizes)]

    def _get(self, key, address, size):
        value = self.world.objects.get(key)
        if value is None:
            return -704
        if len(value) > size:
            return -600
        ctypes.memmove(address, value, len(value))
        return len(value)

    def get_size(self, key):
        return len(self.world.objects[key]) if key in self.world.objects else -704

    def batch_remove(self, keys, force):
        assert force
        self._enter("remove", keys)
        return [0 if self.world.objects.pop(key, None) is not None else -704 for key in keys]

    def remove_by_regex(self, pattern, force):
        assert force
        self._enter("remove_by_regex", [pattern])
        found = [key for key in self.world.objects if re.search(pattern, key)]
        for key in found:
            del self.world.objects[key]
        return len(found)

    def setup_dummy(self, pool, local, address):
        assert (pool, local) == (0, 0)
        self.world.setups.append(("dummy", address))
        self.open = self.world.setup_code == 0
        return self.world.setup_code

    def register_buffer(self, base, size):
        if self.world.register_code == 0:
            self.world.registered.append((base, size))
        return self.world.register_code

    def unregister_buffer(self, base):
        self.world.registered = [pair for pair in self.world.registered if pair[0] != base]
        return 0

    def close(self):
        self.open = False


class Allocator:
    """One memory file for each segment, as the thin client has it."""

    def __init__(self, world):
        self.world = world
        self.world.files = {}

    def alloc(self, size):
        if self.world.refuses_memory:
            raise RuntimeError("Failed to map shared memory: Cannot allocate memory")
        fd = os.memfd_create("mooncake_shm")
        os.ftruncate(fd, size)
        region = memory.Region(fd, 0, size)
        self.world.segments[region.base] = region
        self.world.files[region.base] = fd
        return region.base

    def free(self, address):
        assert address not in [base for base, _ in self.world.registered]
        os.close(self.world.files.pop(address))
        del self.world.segments[address]
        return 0


class World:
    """What the double knows, and the package around it."""

    def __init__(self):
        self.setup_code = self.register_code = 0
        self.setups, self.calls, self.registered = [], [], []
        self.objects, self.groups, self.answers, self.segments = {}, {}, {}, {}
        self.refuses_memory = False
        self.known_settings = {"tenant_id", "enable_ssd_offload", "ssd_offload_path"}
        self.hooks = {}  # call: function that answers, None for the usual answer
        self.package = types.SimpleNamespace(ReplicateConfig=ReplicateConfig,
                                             MooncakeDistributedStore=lambda: Client(self),
                                             MooncakeHostMemAllocator=lambda: Allocator(self))


@pytest.fixture
def world():
    return World()


class Peer:
    """The cache's side of a connection to a server in a thread of this process."""

    def __init__(self, served):
        self.socket, far = socket.socketpair()
        self.socket.settimeout(20)
        self.thread = threading.Thread(target=served.serve_control, args=(far,), daemon=True)
        self.thread.start()

    def send(self, kind, body=b"", fd=None, request=1):
        frame = frames.encode(kind, request, 0, body)
        if fd is None:
            self.socket.sendall(frame)
        else:
            socket.send_fds(self.socket, [frame], [fd])

    def receive(self, connection=None):
        connection = connection or self.socket
        header = self._exactly(connection, frames.HEADER.size)
        kind, request, status, size = frames.decode_header(header)
        return kind, request, status, self._exactly(connection, size)

    def call(self, kind, body=b"", fd=None):
        self.send(kind, body, fd, request=77)
        answered, request, status, body = self.receive()
        assert (answered, request) == (kind | frames.REPLY, 77)
        return status, body

    @staticmethod
    def _exactly(connection, size):
        data = b""
        while len(data) < size:
            try:
                more = connection.recv(size - len(data))
            except ConnectionResetError:
                more = b""  # it closed without reading everything
            if not more:
                raise EOFError
            data += more
        return data


@pytest.fixture
def peer(world):
    return Peer(server.Server(guarded_store.GuardedStore(world.package), None))


def set_up(peer):
    status, body = peer.call(frames.SETUP, frames.encode_pairs(OPTIONS))
    assert status == frames.OK and frames.decode_results(body)[0] == [0]


THIN = {"standalone_storage": "1", "client_server_address": SERVER}


@pytest.fixture
def thin_peer(world):
    peer = Peer(server.Server(guarded_store.GuardedStore(world.package), None))
    status, body = peer.call(frames.SETUP, frames.encode_pairs(THIN))
    assert status == frames.OK and frames.decode_results(body)[0] == [0]
    return peer


def code_of(answer):
    """The one result of (status, body)."""
    assert answer[0] == frames.OK, answer
    return frames.decode_results(answer[1])[0][0]


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"# HELP x y\nmaster_key_count 12\nmaster_allocated_bytes 3.456e+03\n"
                         b"master_evicted_key_count nan\nother 5\n")

    def log_message(self, *args):
        pass
