"""The store agent and a store that is away, and the ways to set its client up."""

import http.server
import importlib
import socket
import threading
import time

import pytest

from store_double import (OPTIONS, THIN, Client, Page, Peer, code_of, frames, guarded_store,
                          peer, server, set_up, world)  # pylint: disable=unused-import

client_setup = importlib.import_module("hitide.store_agent.client_setup")
watch = importlib.import_module("hitide.store_agent.watch")

# ---- a store that is away ------------------------------------------------------------------------


class Master:
    """Something that listens, until it is killed."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.address = self.listener.getsockname()
        self.accepted = []
        self.accept()

    def accept(self):
        def run(listener):
            try:
                while True:
                    self.accepted.append(listener.accept()[0])
            except OSError:
                pass  # killed

        threading.Thread(target=run, args=(self.listener,), daemon=True).start()

    def kill(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        while self.accepted:
            self.accepted.pop().close()

    def come_back(self):
        self.listener = socket.create_server(self.address, backlog=16)
        self.accept()


@pytest.fixture
def master():
    master = Master()
    yield master
    master.kill()


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.001)


def watched_lane(world, master):
    """(control, lane) of a server whose store is at `master`."""
    peer = Peer(server.Server(guarded_store.GuardedStore(world.package), None))
    host, port = master.address
    options = {**OPTIONS, "master_server_address": f"{host}:{port}"}
    assert code_of(peer.call(frames.SETUP, frames.encode_pairs(options))) == 0
    near, far = socket.socketpair()
    near.settimeout(20)
    assert peer.call(frames.ADD_LANE, fd=far.fileno())[0] == frames.OK
    far.close()
    return peer, near


def ask(lane, peer, keys):
    lane.sendall(frames.encode(frames.EXISTS, 5, 0, frames.encode_keys(keys)))
    _, request, status, body = peer.receive(lane)
    assert (request, status) == (5, frames.OK)
    return frames.decode_results(body)[0]


def test_set_up_of_a_store_that_is_away_is_told_at_once(peer, world, master):
    master.kill()
    host, port = master.address
    options = frames.encode_pairs({**OPTIONS, "master_server_address": f"{host}:{port}"})
    for _ in range(2):
        assert code_of(peer.call(frames.SETUP, options)) == frames.STORE_AWAY
    assert not world.setups, "the client was not asked"
    master.come_back()
    assert code_of(peer.call(frames.SETUP, options)) == 0


def test_calls_are_refused_while_the_master_is_away(world, master):
    peer, lane = watched_lane(world, master)
    assert ask(lane, peer, [b"a", b"b"]) == [0, 0]
    until(lambda: master.accepted)
    master.kill()
    until(lambda: ask(lane, peer, [b"a", b"b"]) == [frames.STORE_AWAY] * 2)
    before = len(world.calls)
    assert ask(lane, peer, [b"a"]) == [frames.STORE_AWAY]
    assert len(world.calls) == before, "the client is not asked"
    master.come_back()
    until(lambda: ask(lane, peer, [b"a"]) == [0])


# A query that hangs is answered in the client's place, and its lane goes on.
def test_a_query_in_flight_is_answered_when_the_master_goes_away(world, master):
    peer, lane = watched_lane(world, master)
    until(lambda: master.accepted)
    hanging, go_on = threading.Event(), threading.Event()

    def hang():
        hanging.set()
        assert go_on.wait(20)
        return None

    world.hooks["exists"] = hang
    lane.sendall(frames.encode(frames.EXISTS, 5, 0, frames.encode_keys([b"a", b"b"])))
    assert hanging.wait(20)
    del world.hooks["exists"]
    master.kill()
    _, request, status, body = peer.receive(lane)
    assert (request, status) == (5, frames.OK)
    assert frames.decode_results(body)[0] == [frames.STORE_AWAY] * 2
    assert ask(lane, peer, [b"a"]) == [frames.STORE_AWAY]
    go_on.set()
    master.come_back()
    until(lambda: ask(lane, peer, [b"a"]) == [0])
    assert ask(lane, peer, [b"a"] * 3) == [0] * 3, "and no old answer comes later"


# A daemon without a master lets clients in, and can do nothing for them.
def test_set_up_waits_until_the_store_answers(world, master):
    peer = Peer(server.Server(guarded_store.GuardedStore(world.package), None))
    host, port = master.address
    options = frames.encode_pairs({**THIN, "client_server_address": f"{host}:{port}"})
    world.hooks["exists"] = lambda: [-900]
    for _ in range(2):
        assert code_of(peer.call(frames.SETUP, options)) == frames.STORE_AWAY
    assert len(world.setups) == 1, "once is enough"
    del world.hooks["exists"]
    assert code_of(peer.call(frames.SETUP, options)) == 0
    assert peer.call(frames.SETUP, options)[0] == frames.BAD_REQUEST


# A store that takes connections and answers nothing: stopped, or not started up yet.
def test_a_store_that_answers_nothing_is_away(world, master):
    peer, lane = watched_lane(world, master)
    silent = threading.Event()
    silent.set()

    def refuse():
        return [-901] * 1 if silent.is_set() else None

    world.hooks["exists"] = refuse
    assert ask(lane, peer, [b"a"])[0] in (-901, frames.STORE_AWAY), "it may have been slow"
    until(lambda: ask(lane, peer, [b"a"]) == [frames.STORE_AWAY])
    silent.clear()
    until(lambda: ask(lane, peer, [b"a"]) == [0])


def test_a_master_that_comes_back_before_it_is_missed_is_not_away(world, master):
    served = watch.Watch(master.address, lambda: True)
    served.start()
    until(lambda: master.accepted)
    first = master.accepted.pop()
    first.close()
    until(lambda: master.accepted)
    assert not served.away


def test_addresses_are_read():
    assert watch.parse_server("h:1") == ("h", 1)
    assert watch.parse_server("[::1]:50051") == ("::1", 50051)
    for text in ("", "h", "h:", ":1", "h:x"):
        with pytest.raises(frames.RequestError):
            watch.parse_server(text)


# ---- set-up --------------------------------------------------------------------------------------


SSD = {"enable_ssd_offload": "1", "ssd_offload_path": "/ssd"}


def set_up_client(world, settings, segment_bytes=0):
    return client_setup.set_up(Client(world), {**OPTIONS, **settings}, segment_bytes)


def test_a_segment_may_reach_to_its_owners_disk(world):
    assert set_up_client(world, SSD, 1 << 20) == (0, [])
    args, settings = world.setups[-1]
    assert args[2] == 1 << 20
    assert settings == {"enable_ssd_offload": True, "ssd_offload_path": "/ssd",
                        "tenant_id": "default"}
    assert set_up_client(world, {**SSD, "enable_ssd_offload": "0"}) == (0, [])
    assert world.setups[-1][1] == {"tenant_id": "default"}


@pytest.mark.parametrize("known, left_out", [
    ({"tenant_id", "enable_ssd_offload"}, ["ssd_offload_path"]),
    ({"tenant_id"}, ["ssd_offload_path", "enable_ssd_offload"]),
    (set(), ["ssd_offload_path", "enable_ssd_offload"])])
def test_what_an_older_client_does_not_know_is_left_out_and_told(world, known, left_out):
    world.known_settings = known
    assert set_up_client(world, SSD) == (0, left_out)
    assert set(world.setups[-1][1]) == known


def test_a_tenant_is_never_left_out(world):
    world.known_settings = set()
    with pytest.raises(frames.RequestError, match="tenant_id.*'blue'"):
        set_up_client(world, {"tenant_id": "blue"})
    assert not world.setups


def test_other_type_errors_are_not_swallowed(world):
    world.known_settings = None
    with pytest.raises(TypeError):
        set_up_client(world, {})


def test_set_up_waits_for_the_masters_http_service_where_asked_to(peer, world):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = {**OPTIONS, "master_metrics_port": str(port), "check_server": "1"}
    assert code_of(peer.call(frames.SETUP, frames.encode_pairs(options))) == frames.STORE_AWAY
    assert not world.setups
    with http.server.HTTPServer(("127.0.0.1", port), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        assert code_of(peer.call(frames.SETUP, frames.encode_pairs(options))) == 0
        page.shutdown()


def test_without_a_metrics_port_there_is_nothing_to_wait_for(peer):
    options = frames.encode_pairs({**OPTIONS, "check_server": "1"})
    assert code_of(peer.call(frames.SETUP, options)) == 0
