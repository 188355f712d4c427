"""The store agent without a store: frames, guards, memory and the connection, over a double that
behaves as Mooncake's client does, traps included."""

import ctypes
import http.server
import importlib
import os
import random
import socket
import struct
import threading
import types

import pytest

from store_double import (OPTIONS, ROOT, SERVER, THIN, Page, Peer, code_of, frames, guarded_store,
                          memory, peer, server, set_up, thin_peer,
                          world)  # pylint: disable=unused-import

available = importlib.import_module("hitide.store_agent.available")
metrics = importlib.import_module("hitide.store_agent.metrics")
owner = importlib.import_module("hitide.store_agent.owner")
segments = importlib.import_module("hitide.store_agent.segments")


@pytest.fixture
def store(world):
    guarded = guarded_store.GuardedStore(world.package)
    assert guarded.setup(OPTIONS) == 0
    return guarded


class Buffer:
    """Memory with addresses."""

    def __init__(self, size):
        self.bytes = ctypes.create_string_buffer(size)
        self.base = ctypes.addressof(self.bytes)

    def __getitem__(self, part):
        return self.bytes.raw[part]


# ---- frames --------------------------------------------------------------------------------------


def golden():
    path = os.path.join(ROOT, "tests", "golden", "agent", "frames.txt")
    with open(path, encoding="ascii") as file:
        return {name: bytes.fromhex(text) for name, text in (line.split() for line in file)}


def test_golden_requests_are_read():
    seen = golden()
    bodies = {}
    for number, name in enumerate(["hello", "setup", "add_lane", "add_memory", "remove_memory",
                                   "exists", "get", "put", "remove", "stats", "shutdown",
                                   "allocate_memory", "free_memory", "put_absent",
                                   "remove_prefix"], 1):
        kind, request, status, size = frames.decode_header(seen[name][:frames.HEADER.size])
        assert (kind, request, status) == (number, number, 0)
        bodies[name] = seen[name][frames.HEADER.size:]
        assert len(bodies[name]) == size
    assert frames.decode_pairs(bodies["setup"]) == {"protocol": "tcp", "device_name": ""}
    assert frames.decode_memory(bodies["add_memory"]) == (7, 4096, 1 << 30)
    assert frames.decode_region(bodies["remove_memory"]) == 7
    assert frames.decode_segment(bodies["allocate_memory"]) == (9, 1 << 30)
    assert frames.decode_region(bodies["free_memory"]) == 9
    assert frames.decode_keys(bodies["exists"]) == [b"a", b"key/2", b"z\0\xff"]
    assert frames.decode_keys(bodies["remove_prefix"]) == [b"a.b/"]
    for name in ("put", "put_absent"):
        assert frames.decode_items(bodies[name]) == (
            [(0, 0, 1), (7, 1 << 33, 262144)], [b"a", b"key/2"], [b"g1", b""])


def test_golden_replies_are_written():
    seen = golden()
    assert seen["reply_get"] == frames.encode(frames.GET | frames.REPLY, 7, frames.OK,
                                              frames.encode_results([1, -704], 1234))
    assert seen["reply_stats"] == frames.encode(
        frames.STATS | frames.REPLY, 10, frames.OK,
        frames.encode_pairs({"objects": "12", "bytes_used": "3456"}))
    assert seen["reply_allocate_memory"] == frames.encode(
        frames.ALLOCATE_MEMORY | frames.REPLY, 12, frames.OK,
        frames.encode_results([frames.NO_MEMORY], 17))
    assert seen["reply_error"] == frames.encode(frames.GET | frames.REPLY, 12, frames.BAD_REQUEST,
                                                b"there is no request 99 here")


DECODERS = {"exists": frames.decode_keys, "get": frames.decode_items, "setup": frames.decode_pairs,
            "add_memory": frames.decode_memory, "remove_memory": frames.decode_region,
            "allocate_memory": frames.decode_segment, "free_memory": frames.decode_region,
            "reply_get": frames.decode_results}


@pytest.mark.parametrize("name", DECODERS)
def test_cut_bodies_are_refused(name):
    body = golden()[name][frames.HEADER.size:]
    for length in range(len(body)):
        with pytest.raises(frames.RequestError):
            DECODERS[name](memoryview(body[:length]))
    with pytest.raises(frames.RequestError):
        DECODERS[name](memoryview(body + b"\0"))


@pytest.mark.parametrize("name", DECODERS)
def test_damaged_bodies_are_refused_or_read(name):
    body = golden()[name][frames.HEADER.size:]
    for bit in range(8 * len(body)):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << (bit % 8)
        try:
            DECODERS[name](memoryview(bytes(damaged)))
        except frames.RequestError:
            pass


def test_damaged_headers_are_refused():
    header = golden()["get"][:frames.HEADER.size]
    for at in range(6):
        damaged = bytearray(header)
        damaged[at] ^= 1
        with pytest.raises(frames.FrameError):
            frames.decode_header(bytes(damaged))
    too_long = frames.HEADER.pack(frames.MAGIC, frames.VERSION, 7, 1, 0, frames.BODY_BYTES_MAX + 1)
    with pytest.raises(frames.FrameError):
        frames.decode_header(too_long)


# ---- guards --------------------------------------------------------------------------------------


def test_calls_before_set_up_are_refused(world):
    guarded = guarded_store.GuardedStore(world.package)
    for call in (lambda: guarded.exists([b"a"]), lambda: guarded.get([b"a"], [1], [1]),
                 lambda: guarded.put([b"a"], [1], [1], [b""]), lambda: guarded.remove([b"a"])):
        with pytest.raises(frames.RequestError) as error:
            call()
        assert error.value.status == frames.NOT_READY


def test_calls_after_close_are_refused(store):
    store.close()
    with pytest.raises(frames.RequestError):
        store.exists([b"a"])
    store.close()


def test_settings_that_are_missing_are_named(world):
    guarded = guarded_store.GuardedStore(world.package)
    with pytest.raises(frames.RequestError, match="protocol"):
        guarded.setup({name: value for name, value in OPTIONS.items() if name != "protocol"})


def test_a_failed_set_up_can_be_tried_again(world):
    world.setup_code = -1
    guarded = guarded_store.GuardedStore(world.package)
    assert guarded.setup(OPTIONS) == -1
    assert not guarded.ready
    world.setup_code = 0
    assert guarded.setup({**OPTIONS, "tenant_id": "t"}) == 0
    args, settings = world.setups[-1]
    assert args == ("h", "P2PHANDSHAKE", 0, 0, "tcp", "", SERVER)
    assert settings == {"tenant_id": "t"}


def test_bad_items_never_reach_the_client(store, world):
    buffer = Buffer(64)
    keys = [b"", b"null", b"zero", b"k" * (frames.KEY_BYTES_MAX + 1), b"good"]
    addresses = [buffer.base, 0, buffer.base, buffer.base, buffer.base]
    sizes = [8, 8, 0, 8, 8]
    bad = [frames.ITEM_BAD_KEY, frames.ITEM_UNMAPPED, frames.ITEM_BAD_SIZE, frames.ITEM_BAD_KEY]
    assert store.put(keys, addresses, sizes, [b""] * 5) == bad + [frames.PUT_WRITTEN]
    assert store.get(keys, addresses, sizes) == bad + [8]
    assert store.exists(keys)[4] == 1 and store.exists(keys)[0] == frames.ITEM_BAD_KEY
    assert store.remove(keys)[0] == frames.ITEM_BAD_KEY
    assert store.exists([b""]) == [frames.ITEM_BAD_KEY]
    assert store.remove_prefix(b"") == frames.ITEM_BAD_KEY
    assert list(world.objects) == []


def test_a_prefix_is_no_pattern(store, world):
    for key in (b"a.b/1", b"a.b/(2", b"a.b", b"axb/1", b"x/a.b/1", b"a.b/\xff"):
        world.objects[key] = b"bytes"
    assert store.remove_prefix(b"a.b/") == 3
    assert sorted(world.objects) == [b"a.b", b"axb/1", b"x/a.b/1"]
    for odd in (b"[", b"(", b"\\", b"^$.*+?()[]{}|/"):
        world.objects[odd + b"1"] = b"bytes"
        assert store.remove_prefix(odd) == 1


# K11, B149: duplicates each get their own answer.
def test_duplicates_in_a_get_each_get_their_bytes(store, world):
    world.objects = {b"a": b"AAAA", b"b": b"BBBB"}
    buffer = Buffer(20)
    keys = [b"a", b"b", b"a", b"a", b"none"]
    assert store.get(keys, [buffer.base + 4 * i for i in range(5)], [4] * 5) == [4, 4, 4, 4, -704]
    assert buffer[:16] == b"AAAABBBBAAAAAAAA"


def test_the_first_of_duplicates_in_a_put_is_stored(store, world):
    buffer = Buffer(16)
    buffer.bytes.raw = b"AAAABBBBCCCCDDDD"
    keys = [b"a", b"b", b"a", b"a"]
    results = store.put(keys, [buffer.base + 4 * i for i in range(4)], [4] * 4, [b""] * 4)
    assert results == [frames.PUT_WRITTEN, frames.PUT_WRITTEN, frames.PUT_EXISTED,
                       frames.PUT_EXISTED]
    assert world.objects == {b"a": b"AAAA", b"b": b"BBBB"}


# K11, B141: the first value is kept, and the answer says that it was there.
def test_put_of_an_existing_key_says_so(store, world):
    world.objects = {b"a": b"old"}
    buffer = Buffer(4)
    assert store.put([b"a", b"b"], [buffer.base] * 2, [4, 4], [b"", b""]) == [
        frames.PUT_EXISTED, frames.PUT_WRITTEN]
    assert world.objects[b"a"] == b"old"
    assert ("put", [b"b"]) in world.calls


# What the caller has just asked is not asked again; the first value is kept all the same.
def test_put_of_keys_that_are_known_to_be_absent_does_not_ask(store, world):
    world.objects = {b"a": b"old"}
    buffer = Buffer(4)
    keys = [b"a", b"b", b"b"]
    assert store.put(keys, [buffer.base] * 3, [4] * 3, [b""] * 3, known_absent=True) == [
        frames.PUT_WRITTEN, frames.PUT_WRITTEN, frames.PUT_EXISTED]
    assert world.objects[b"a"] == b"old"
    assert [call for call, _ in world.calls] == ["put"]


# K11, B147: every item's length is looked at by itself.
@pytest.mark.parametrize("held", [1, 3, 5, 100])
def test_another_length_is_a_mismatch(store, world, held):
    world.objects = {b"a": b"x" * held, b"b": b"y" * 4}
    buffer = Buffer(8)
    assert store.get([b"a", b"b"], [buffer.base, buffer.base + 4], [4, 4]) == [
        frames.ITEM_LENGTH_MISMATCH, 4]


def test_a_put_that_finds_no_space_is_tried_again_for_its_tail(store, world):
    buffer = Buffer(4)
    keys = [b"a", b"b", b"c"]
    world.answers = {"put": [0, -200, -200]}
    results = store.put(keys, [buffer.base] * 3, [4] * 3, [b""] * 3)
    assert results == [frames.PUT_WRITTEN] * 3
    assert [call for call in world.calls if call[0] == "put"] == [
        ("put", keys), ("put", [b"b", b"c"])]


def test_groups_go_with_their_items_only(store, world):
    buffer = Buffer(4)
    store.put([b"a", b"b", b"c"], [buffer.base] * 3, [4] * 3, [b"page 1", b"", b"page 2"])
    assert world.groups == {b"a": b"page 1", b"c": b"page 2"}
    assert set(world.objects) == {b"a", b"b", b"c"}


@pytest.mark.parametrize("answer", [[1], [1, 1, 1], None])
def test_a_wrong_number_of_answers_is_an_error(store, world, answer):
    world.answers = {"exists": answer if answer is not None else RuntimeError("raised")}
    with pytest.raises((frames.RequestError, RuntimeError)):
        store.exists([b"a", b"b"])


def test_tcp_registers_nothing_with_the_client(world):
    for protocol, registered in (("tcp", 0), ("rdma", 1)):
        guarded = guarded_store.GuardedStore(world.package)
        guarded.setup({**OPTIONS, "protocol": protocol})
        assert guarded.register(4096, 10) == 0
        assert len(world.registered) == registered


# ---- memory --------------------------------------------------------------------------------------


@pytest.fixture
def region_fd():
    fd = os.memfd_create("pool")
    os.ftruncate(fd, 3 * 4096)
    yield fd
    os.close(fd)


def test_places_outside_a_region_have_no_address(region_fd):
    regions = memory.Memory()
    region, code = regions.add(3, region_fd, 4096, 8192)
    assert code == 0
    places = [(3, 0, 1), (3, 8191, 1), (3, 0, 8192), (3, 1, 8192), (3, 8193, 0), (4, 0, 1),
              (3, 1 << 63, 1 << 63)]
    addresses, _ = regions.resolve(places)
    assert addresses == [region.base, region.base + 8191, region.base, 0, 0, 0, 0]


def test_bad_regions_are_refused(region_fd):
    regions = memory.Memory()
    for number, offset, size in ((1, 0, 0), (1, 100, 4096), (1, 8192, 8192), (1, 1 << 62, 4096)):
        with pytest.raises(frames.RequestError):
            regions.add(number, region_fd, offset, size)
    regions.add(1, region_fd, 0, 4096)
    with pytest.raises(frames.RequestError):
        regions.add(1, region_fd, 0, 4096)
    regions.remove(1)
    with pytest.raises(frames.RequestError):
        regions.remove(1)


def test_a_region_in_use_outlives_its_removal(region_fd):
    os.pwrite(region_fd, b"still here", 0)
    regions = memory.Memory()
    regions.add(1, region_fd, 0, 4096)
    addresses, held = regions.resolve([(1, 0, 10)])
    regions.remove(1)
    assert ctypes.string_at(addresses[0], 10) == b"still here"
    assert held


# ---- the server ----------------------------------------------------------------------------------


def test_bytes_go_through_shared_memory(peer, world, region_fd):
    set_up(peer)
    os.pwrite(region_fd, b"payload", 100)
    status, body = peer.call(frames.ADD_MEMORY, frames.MEMORY.pack(5, 0, 8192), region_fd)
    assert status == frames.OK and frames.decode_results(body)[0] == [0]
    put = frames.encode_items([(5, 100, 7)], [b"k"], [b""])
    assert frames.decode_results(peer.call(frames.PUT, put)[1])[0] == [frames.PUT_WRITTEN]
    assert world.objects == {b"k": b"payload"}
    get = frames.encode_items([(5, 4096, 7), (5, 8190, 7), (6, 0, 7)], [b"k"] * 3, [b""] * 3)
    assert frames.decode_results(peer.call(frames.GET, get)[1])[0] == [
        7, frames.ITEM_UNMAPPED, frames.ITEM_UNMAPPED]
    assert os.pread(region_fd, 7, 4096) == b"payload"
    status, _ = peer.call(frames.REMOVE_MEMORY, frames.REGION.pack(5))
    assert status == frames.OK
    assert frames.decode_results(peer.call(frames.GET, get)[1])[0] == [frames.ITEM_UNMAPPED] * 3


def test_a_thin_client_adopts_whole_memory_files(thin_peer, world, region_fd):
    peer = thin_peer
    assert world.setups == [("dummy", SERVER)]
    os.pwrite(region_fd, b"payload", 100)
    for part in (frames.MEMORY.pack(5, 4096, 8192), frames.MEMORY.pack(5, 0, 8192)):
        assert peer.call(frames.ADD_MEMORY, part, region_fd)[0] == frames.BAD_REQUEST
    status, body = peer.call(frames.ADD_MEMORY, frames.MEMORY.pack(5, 0, 3 * 4096), region_fd)
    assert status == frames.OK and frames.decode_results(body)[0] == [0]
    assert world.registered == [(next(iter(world.segments)), 3 * 4096)]
    put = frames.encode_items([(5, 100, 7)], [b"k"], [b""])
    assert frames.decode_results(peer.call(frames.PUT, put)[1])[0] == [frames.PUT_WRITTEN]
    assert world.objects == {b"k": b"payload"}, "the segment shows the cache's memory"
    get = frames.encode_items([(5, 8192, 7)], [b"k"], [b""])
    assert frames.decode_results(peer.call(frames.GET, get)[1])[0] == [7]
    assert os.pread(region_fd, 7, 8192) == b"payload"
    assert code_of(peer.call(frames.REMOVE_MEMORY, frames.REGION.pack(5))) == 0
    assert not world.segments and not world.registered, "nothing is held any more"


WHOLE = frames.MEMORY.pack(5, 0, 3 * 4096)


def test_an_adoption_that_is_refused_is_told(thin_peer, world, region_fd):
    world.register_code = -1
    assert code_of(thin_peer.call(frames.ADD_MEMORY, WHOLE, region_fd)) == -1
    get = frames.encode_items([(5, 0, 7)], [b"k"], [b""])
    assert code_of(thin_peer.call(frames.GET, get)) == frames.ITEM_UNMAPPED
    assert not world.segments, "the segment for it was given back"
    world.register_code = 0
    assert code_of(thin_peer.call(frames.ADD_MEMORY, WHOLE, region_fd)) == 0


def test_too_little_memory_is_seen_before_it_is_taken(thin_peer, world, region_fd, monkeypatch):
    monkeypatch.setenv(available.TEST_VARIABLE, str(segments.RESERVE_BYTES + 3 * 4096 - 1))
    assert code_of(thin_peer.call(frames.ADD_MEMORY, WHOLE, region_fd)) == frames.NO_MEMORY
    allocate = frames.SEGMENT.pack(1, 3 * 4096)
    assert code_of(thin_peer.call(frames.ALLOCATE_MEMORY, allocate)) == frames.NO_MEMORY
    assert not world.files, "the client was not asked"
    monkeypatch.setenv(available.TEST_VARIABLE, str(segments.RESERVE_BYTES + 3 * 4096))
    assert code_of(thin_peer.call(frames.ADD_MEMORY, WHOLE, region_fd)) == 0
    world.refuses_memory = True
    assert code_of(thin_peer.call(frames.ALLOCATE_MEMORY, allocate)) == frames.NO_MEMORY


def test_an_exchange_without_effect_shows_other_bytes(world, region_fd, monkeypatch):
    monkeypatch.setenv(segments.TEST_VARIABLE, "0")
    peer = Peer(server.Server(guarded_store.GuardedStore(world.package), None))
    peer.call(frames.SETUP, frames.encode_pairs(THIN))
    assert code_of(peer.call(frames.ADD_MEMORY, WHOLE, region_fd)) == 0
    put = frames.encode_items([(5, 0, 4096), (5, 8192, 4096)], [b"a", b"b"], [b""] * 2)
    assert peer.call(frames.PUT, put)[0] == frames.OK
    for value in world.objects.values():
        assert value != bytes(4096), "of a fresh file all bytes are zero: that alone proves nothing"


def test_a_thin_client_hands_out_memory(thin_peer, world):
    allocate = frames.SEGMENT.pack(7, 2 * 4096)
    thin_peer.send(frames.ALLOCATE_MEMORY, allocate)
    data, fds, _, _ = socket.recv_fds(thin_peer.socket, 1 << 16, 4)
    assert code_of((frames.OK, data[frames.HEADER.size:])) == 0
    assert len(fds) == 1 and os.fstat(fds[0]).st_size == 2 * 4096
    os.pwrite(fds[0], b"payload", 100)
    assert thin_peer.call(frames.ALLOCATE_MEMORY, allocate)[0] == frames.BAD_REQUEST
    whole = frames.MEMORY.pack(5, 0, 2 * 4096)
    assert code_of(thin_peer.call(frames.ADD_MEMORY, whole, fds[0])) == 0
    assert len(world.segments) == 1, "it is a segment already"
    put = frames.encode_items([(5, 100, 7)], [b"k"], [b""])
    assert code_of(thin_peer.call(frames.PUT, put)) == frames.PUT_WRITTEN
    assert world.objects == {b"k": b"payload"}
    free = frames.REGION.pack(7)
    assert thin_peer.call(frames.FREE_MEMORY, free)[0] == frames.BAD_REQUEST, "it is registered"
    assert code_of(thin_peer.call(frames.REMOVE_MEMORY, frames.REGION.pack(5))) == 0
    assert len(world.segments) == 1, "not freed by that"
    assert code_of(thin_peer.call(frames.FREE_MEMORY, free)) == 0
    assert not world.segments
    assert thin_peer.call(frames.FREE_MEMORY, free)[0] == frames.BAD_REQUEST
    os.close(fds[0])


def test_a_real_client_hands_out_no_memory(peer):
    for call in (lambda: None, lambda: set_up(peer)):
        call()
        assert peer.call(frames.ALLOCATE_MEMORY, frames.SEGMENT.pack(1, 4096))[0] in (
            frames.BAD_REQUEST, frames.NOT_READY)


def test_available_memory_is_the_least_of_what_is_known(monkeypatch):
    assert available.meminfo_bytes("MemFree: 1 kB\nMemAvailable:  12 kB\n", "MemAvailable") == 12288
    assert available.meminfo_bytes("MemAvailable: what\n", "MemAvailable") is None
    assert available.cgroup_room("1000\n", "400\n", "inactive_file 100\nother 7\n") == 700
    assert available.cgroup_room("1000", "4000", "") == 0
    assert available.cgroup_room("max", "1", "") is None
    assert available.cgroup_room("", "", "") is None
    monkeypatch.delenv(available.TEST_VARIABLE, raising=False)
    assert available.available_bytes() > 1 << 20
    monkeypatch.setenv(available.TEST_VARIABLE, "7")
    assert available.available_bytes() == 7


def test_lanes_serve_calls_and_nothing_else(peer, world):
    set_up(peer)
    world.objects = {b"a": b"x"}
    near, far = socket.socketpair()
    near.settimeout(20)
    assert peer.call(frames.ADD_LANE, fd=far.fileno())[0] == frames.OK
    far.close()
    near.sendall(frames.encode(frames.EXISTS, 5, 0, frames.encode_keys([b"a", b"b"])))
    kind, request, status, body = peer.receive(near)
    assert (kind, request, status) == (frames.EXISTS | frames.REPLY, 5, frames.OK)
    assert frames.decode_results(body)[0] == [1, 0]
    near.sendall(frames.encode(frames.SETUP, 6))
    assert peer.receive(near)[2] == frames.BAD_REQUEST
    assert peer.call(frames.ADD_LANE)[0] == frames.BAD_REQUEST, "no descriptor came along"


def test_a_call_that_raises_spoils_itself_only(peer, world):
    set_up(peer)
    world.answers = {"exists": RuntimeError("the client raised")}
    status, body = peer.call(frames.EXISTS, frames.encode_keys([b"a"]))
    assert status == frames.STORE_FAILED and b"the client raised" in body
    assert peer.call(frames.EXISTS, frames.encode_keys([b"a"]))[0] == frames.OK


def test_a_refused_registration_leaves_nothing_behind(world, region_fd):
    world.register_code = -1
    peer = Peer(server.Server(guarded_store.GuardedStore(world.package), None))
    assert peer.call(frames.SETUP, frames.encode_pairs({**OPTIONS, "protocol": "rdma"}))[0] == 0
    for _ in range(2):
        _, body = peer.call(frames.ADD_MEMORY, frames.MEMORY.pack(5, 0, 4096), region_fd)
        assert frames.decode_results(body)[0] == [-1]


def test_without_the_package_every_call_says_so():
    peer = Peer(server.Server(None, "python cannot import it"))
    for call in (frames.HELLO, frames.SETUP):
        status, body = peer.call(call, frames.encode_pairs({}) if call == frames.SETUP else b"")
        assert status == frames.PACKAGE_MISSING and body == b"python cannot import it"


def test_a_broken_stream_ends_the_connection(peer):
    peer.socket.sendall(struct.pack("<IHHQII", 0x12345678, 1, 1, 1, 0, 0))
    assert peer.receive()[2] == frames.BAD_FRAME
    with pytest.raises(EOFError):
        peer.receive()
    peer.thread.join(20)
    assert not peer.thread.is_alive()


def test_another_version_is_told_apart(peer):
    peer.socket.sendall(frames.HEADER.pack(frames.MAGIC, 2, 1, 1, 0, 0))
    assert peer.receive()[2] == frames.BAD_VERSION


# Every frame, cut and with bits turned: the server answers or closes, and never dies of it.
@pytest.mark.parametrize("options", [None, THIN])
def test_noise_never_kills_the_server(world, options, monkeypatch):
    monkeypatch.setenv(available.TEST_VARIABLE, str(segments.RESERVE_BYTES + (1 << 20)))
    seed = 20261130
    print("seed", seed)
    generator = random.Random(seed)
    served = server.Server(guarded_store.GuardedStore(world.package), None)
    if options:
        assert Peer(served).call(frames.SETUP, frames.encode_pairs(options))[0] == frames.OK
    for name, frame in golden().items():
        if name.startswith("reply") or name == "shutdown":
            continue
        for _ in range(40):
            damaged = bytearray(frame)
            for _ in range(generator.randrange(1, 4)):
                damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
            if generator.random() < 0.3:
                damaged = damaged[:generator.randrange(len(damaged))]
            peer = Peer(served)
            peer.socket.sendall(damaged)
            peer.socket.shutdown(socket.SHUT_WR)
            try:
                while True:
                    peer.receive()
            except EOFError:
                pass
            peer.thread.join(20)
            assert not peer.thread.is_alive(), bytes(damaged).hex()


def test_shutdown_is_answered_and_ends(peer):
    assert peer.call(frames.SHUTDOWN) == (frames.OK, b"")
    peer.thread.join(20)
    assert not peer.thread.is_alive()


# ---- metrics and owner ---------------------------------------------------------------------------


def test_the_master_is_asked_for_its_numbers():
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as page:
        thread = threading.Thread(target=page.serve_forever, daemon=True)
        thread.start()
        options = {"master_server_address": "127.0.0.1:1",
                   "master_metrics_port": str(page.server_port)}
        assert metrics.read_master(options) == {"objects": "12", "bytes_used": "3456"}
        page.shutdown()
    assert metrics.read_master(options) == {}
    assert metrics.read_master({}) == {}


def test_the_owner_reads_its_settings():
    lines = iter(["global_segment_size=1024\n", "protocol=rdma\n", "device_name=a=b\n", "\n",
                  "clear\n", "nonsense\n"])
    settings = owner.read_settings(lines)
    assert settings["global_segment_size"] == "1024"
    assert settings["protocol"] == "rdma"
    assert settings["device_name"] == "a=b"
    assert settings["metadata_server"] == "P2PHANDSHAKE"
    said = []
    commands = owner.Commands(lines)
    owner.serve(types.SimpleNamespace(remove_all=lambda force: 7 if force else -1), commands,
                said.append)
    assert said == ["cleared 7"]
    assert commands.closed.is_set()


def test_the_owner_tries_until_it_is_mounted(monkeypatch):
    monkeypatch.setattr(owner, "RETRY_PAUSE_S", 0.001)
    codes = [-1, -1, 0]

    def answer_set_up(*_, **settings):
        if "enable_ssd_offload" in settings:
            raise TypeError("no such argument")
        return codes.pop(0)

    stores = types.SimpleNamespace(MooncakeDistributedStore=lambda: types.SimpleNamespace(
        setup=answer_set_up, get_hostname=lambda: "h:1"))
    settings = {**owner.DEFAULTS, "global_segment_size": "1024", "master_server_address": "m:1",
                "enable_ssd_offload": "1"}
    said = []
    assert owner.mount(stores, settings, threading.Event(), said.append) is not None
    assert said == ["unsupported enable_ssd_offload", "failed -1", "failed -1", "ready h:1"]
    closed = threading.Event()
    closed.set()
    assert owner.mount(stores, settings, closed, said.append) is None
