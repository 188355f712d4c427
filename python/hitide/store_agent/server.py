"""Serves the protocol: one connection for control, one per lane, a thread each."""

import os
import socket
import sys
import threading
import time
import traceback

from hitide.store_agent import frames, metrics, watch
from hitide.store_agent.guarded_store import SUSPICIOUS
from hitide.store_agent.memory import Memory

LANES_MAX = 64
MEMORY_FREE = (frames.EXISTS, frames.REMOVE)  # calls that touch no memory of the cache's


def _receive(connection, view):
    """Fills the view. EOFError: the other side closed."""
    done = 0
    while done < len(view):
        got = connection.recv_into(view[done:])
        if got == 0:
            raise EOFError
        done += got


def _receive_with_fd(connection, view):
    """Fills the view; answers the one descriptor that came along, or -1."""
    data, fds, flags, _ = socket.recv_fds(connection, len(view), 4)
    for fd in fds[1:]:
        os.close(fd)
    fd = fds[0] if fds else -1
    try:
        if not data:
            raise EOFError
        if flags & socket.MSG_CTRUNC:
            raise frames.FrameError("too many descriptors came with a header")
        view[:len(data)] = data
        _receive(connection, view[len(data):])
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    return fd


class Lane:
    """A connection for calls. The call in flight may be answered by the watch in the client's
    place; then another thread goes on with the connection, and the first ends when the client lets
    it go."""

    def __init__(self, serve, watch_of, connection):
        # `serve` serves until the connection ends; `watch_of` answers the watch, or None.
        self._serve = serve
        self._watch_of = watch_of
        self._connection = connection
        self._lock = threading.Lock()
        self._abandoned = False
        self._watch = self._call = None

    def start(self):
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            self._serve(self._connection, self)
        except OSError as error:
            print(f"lane: {error}", file=sys.stderr, flush=True)
        finally:
            if not self._abandoned:
                self._connection.close()

    def begin(self, kind, request, body):
        """Before the call is carried out."""
        self._watch = self._watch_of()
        if self._watch is None:
            return
        abandon = None
        if kind in MEMORY_FREE and len(body) >= frames.COUNT.size:
            count = frames.COUNT.unpack_from(body)[0]
            if count <= frames.ITEMS_MAX:
                abandon = lambda call: self._abandon(call, kind, request, count)
        with self._lock:
            self._call = self._watch.begin(abandon)

    def end(self, frame):
        """Sends the reply. False: the call was abandoned, and this thread has to end."""
        if self._watch is not None:
            self._watch.end(self._call)
        with self._lock:
            if self._abandoned:
                return False
            self._call = None
        self._connection.sendall(frame)
        return True

    def _abandon(self, call, kind, request, count):
        with self._lock:
            if self._call is not call or self._abandoned:
                return  # it has just ended
            self._abandoned = True
        body = frames.encode_results([frames.STORE_AWAY] * count)
        try:
            self._connection.sendall(frames.encode(kind | frames.REPLY, request, frames.OK, body))
        except OSError:
            pass  # the next one on this connection sees it too
        Lane(self._serve, self._watch_of, self._connection).start()


class Answer:
    """A body with a descriptor that goes along."""

    def __init__(self, body, fd):
        self.body = body
        self.fd = fd


def _send(connection, frame, fd):
    """The whole frame, with a descriptor where there is one."""
    sent = socket.send_fds(connection, [frame], [fd]) if fd >= 0 else 0
    connection.sendall(frame[sent:])


class Server:
    """One agent."""

    def __init__(self, store, missing):
        # `store` is None where the package could not be imported; `missing` says why then.
        self._store = store
        self._missing = missing
        self._memory = Memory()
        self._options = {}
        self._lanes = 0
        self._watch = None  # once the store has answered
        self._waiting = None  # the same, before
        self._calls = {
            frames.EXISTS: self._exists, frames.GET: self._get, frames.PUT: self._put,
            frames.REMOVE: self._remove, frames.PUT_ABSENT: self._put_absent,
            frames.REMOVE_PREFIX: self._remove_prefix,
        }
        self._controls = {
            frames.HELLO: self._hello, frames.SETUP: self._setup, frames.ADD_LANE: self._add_lane,
            frames.ADD_MEMORY: self._add_memory, frames.REMOVE_MEMORY: self._remove_memory,
            frames.STATS: self._stats, frames.ALLOCATE_MEMORY: self._allocate_memory,
            frames.FREE_MEMORY: self._free_memory, **self._calls,
        }

    def serve_control(self, connection):
        """Until the other side closes, asks for the end, or breaks the protocol."""
        self._serve(connection, self._controls)

    def _serve(self, connection, calls, lane=None):
        control = lane is None
        header = memoryview(bytearray(frames.HEADER.size))
        buffer = memoryview(bytearray(64 << 10))
        while True:
            fd = -1
            request = 0
            kind = 0
            try:
                if control:
                    fd = _receive_with_fd(connection, header)
                else:
                    _receive(connection, header)
                kind, request, _, size = frames.decode_header(header)
                if size > len(buffer):
                    buffer = memoryview(bytearray(size))
                body = buffer[:size]
                _receive(connection, body)
                if control and kind == frames.SHUTDOWN:
                    connection.sendall(frames.encode(kind | frames.REPLY, request))
                    return
                if lane is not None:
                    lane.begin(kind, request, body)
                status, answer, sent = self._carry_out(calls, kind, body, fd)
                frame = frames.encode(kind | frames.REPLY, request, status, answer)
                if lane is None:
                    _send(connection, frame, sent)
                elif not lane.end(frame):
                    return  # somebody else goes on here
            except EOFError:
                return
            except frames.FrameError as error:
                connection.sendall(frames.encode(kind | frames.REPLY, request, error.status,
                                                 str(error).encode()))
                return
            finally:
                if fd >= 0:
                    os.close(fd)

    def _carry_out(self, calls, kind, body, fd):
        """(status, body, descriptor or -1): whatever happens in a call spoils this call only."""
        try:
            call = calls.get(kind)
            if call is None:
                raise frames.RequestError(f"there is no request {kind} here")
            answer = call(body, fd)
            if isinstance(answer, Answer):
                return frames.OK, answer.body, answer.fd
            return frames.OK, answer, -1
        except frames.RequestError as error:
            return error.status, str(error).encode(), -1
        except BaseException as error:  # pylint: disable=broad-except
            traceback.print_exc(file=sys.stderr)
            return frames.STORE_FAILED, f"{type(error).__name__}: {error}".encode(), -1

    def _needed(self):
        if self._store is None:
            raise frames.RequestError(self._missing, frames.PACKAGE_MISSING)
        return self._store

    # ---- control ---------------------------------------------------------------------------------

    def _hello(self, _body, _fd):
        store = self._needed()
        return frames.encode_pairs({"pid": str(os.getpid()),
                                    "python": sys.version.split(" ", maxsplit=1)[0],
                                    "groups": "1" if store.groups else "0"})

    def _setup(self, body, _fd):
        options = frames.decode_pairs(body)
        store = self._needed()
        start = time.perf_counter_ns()
        code = self._set_up(store, options)
        return frames.encode_results([code], (time.perf_counter_ns() - start) // 1000)

    def _set_up(self, store, options):
        """0, the client's code, or STORE_AWAY: ask again later then."""
        if self._watch is not None:
            raise frames.RequestError("set up already")
        if not store.ready:
            # The client takes seconds to find out what a connection tells at once.
            reached = watch.connect(store.server(options))
            if reached is None:
                return frames.STORE_AWAY
            reached.close()
            if options.get("check_server") == "1" and not metrics.master_serves(options):
                return frames.STORE_AWAY
            code = store.setup(options)
            if code != 0:
                return code
            self._options = options
            self._waiting = watch.Watch(store.server(options), store.answers)
        # That a daemon lets the client in does not say that it has a master.
        if not self._waiting.start():
            return frames.STORE_AWAY
        self._watch = self._waiting
        return 0

    def _add_lane(self, _body, fd):
        if fd < 0 or self._lanes >= LANES_MAX:
            raise frames.RequestError(f"no descriptor came along, or there are {LANES_MAX} lanes")
        connection = socket.socket(fileno=os.dup(fd))
        self._lanes += 1
        lane_calls = {call: lambda body, _fd, do=do: do(body, -1)
                      for call, do in self._calls.items()}
        Lane(lambda end, lane: self._serve(end, lane_calls, lane), lambda: self._watch,
             connection).start()
        return frames.encode_results([0])

    def _add_memory(self, body, fd):
        number, offset, size = frames.decode_memory(body)
        if fd < 0:
            raise frames.RequestError(f"region {number}: no descriptor came along")
        store = self._needed()
        if store.thin:
            _, code = self._memory.add(number, fd, offset, size, store.segments.take)
            return frames.encode_results([code])
        region, _ = self._memory.add(number, fd, offset, size)
        code = store.register(region.base, size)
        if code != 0:
            self._memory.remove(number)
        return frames.encode_results([code])

    def _remove_memory(self, body, _fd):
        region = self._memory.remove(frames.decode_region(body))
        return frames.encode_results([self._needed().unregister(region.base)])

    def _segments(self):
        segments = self._needed().segments
        if segments is None:
            raise frames.RequestError("only a thin client that is set up hands out memory")
        return segments

    def _allocate_memory(self, body, _fd):
        number, size = frames.decode_segment(body)
        fd, code = self._segments().allocate(number, size)
        return Answer(frames.encode_results([code]), fd)

    def _free_memory(self, body, _fd):
        self._segments().free(frames.decode_region(body))
        return frames.encode_results([0])

    def _stats(self, _body, _fd):
        return frames.encode_pairs(metrics.read_master(self._options))

    # ---- calls -----------------------------------------------------------------------------------

    def _exists(self, body, _fd):
        keys = frames.decode_keys(body)
        return self._results(len(keys), lambda store: store.exists(keys))

    def _remove(self, body, _fd):
        keys = frames.decode_keys(body)
        return self._results(len(keys), lambda store: store.remove(keys))

    def _remove_prefix(self, body, _fd):
        keys = frames.decode_keys(body)
        if len(keys) != 1:
            raise frames.RequestError(f"one prefix a call, not {len(keys)}")
        return self._results(1, lambda store: [store.remove_prefix(keys[0])])

    def _get(self, body, _fd):
        places, keys, _ = frames.decode_items(body)
        addresses, held = self._memory.resolve(places)
        answer = self._results(len(keys), lambda store: store.get(
            keys, addresses, [place[2] for place in places]))
        del held
        return answer

    def _put_absent(self, body, fd):
        return self._put(body, fd, absent=True)

    def _put(self, body, _fd, absent=False):
        places, keys, groups = frames.decode_items(body)
        addresses, held = self._memory.resolve(places)
        answer = self._results(len(keys), lambda store: store.put(
            keys, addresses, [place[2] for place in places], groups, absent))
        del held
        return answer

    def _results(self, count, call):
        """The body of a reply to a call of `count` items."""
        store = self._needed()
        if self._watch is not None and self._watch.away:
            return frames.encode_results([frames.STORE_AWAY] * count)
        start = time.perf_counter_ns()
        results = call(store)
        micros = (time.perf_counter_ns() - start) // 1000
        if self._watch is not None and any(code in SUSPICIOUS for code in results):
            self._watch.suspect()
        return frames.encode_results(results, micros)
