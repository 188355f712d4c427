"""Knows whether the store can be asked.

A call of the client to a store that is away takes seconds, whatever is set, and cannot be ended.
So a connection is kept to where the client's calls go, which is silent and costs nothing; it closes
with the process at its other end. Where it closes, a call answers that the store is away, or a call
takes longer than a second, the store is asked: first for a connection, then through the client. As
long as it does not answer, calls are refused before they reach the client, and calls in flight that
hold no memory are answered in its place.
"""

import select
import socket
import threading
import time

from hitide.store_agent import frames

SLOW_S = 1.0  # a call that takes longer is looked into
LOOK_S = 0.25  # between two looks at calls in flight, and at a store that is away
CONNECT_LIMIT_S = 1.0
ANSWER_LIMIT_S = 1.2


def parse_server(text):
    """(host, port) of host:port or [address]:port."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise frames.RequestError(f"'{text}' is not host:port")
    return host.strip("[]"), int(port)


def connect(server):
    """A connection to a server, or None."""
    try:
        connection = socket.create_connection(server, CONNECT_LIMIT_S)
    except OSError:
        return None
    # A machine that is gone says nothing: it is missed after three seconds or so.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1),
                          (socket.TCP_KEEPCNT, 2)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


class Asking:
    """One question to the store through the client, on a thread of its own: it may hang."""

    def __init__(self, ask):
        self._ask = ask
        self._done = threading.Event()
        self._good = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            self._good = self._ask()
        except BaseException:  # pylint: disable=broad-except
            self._good = False
        finally:
            self._done.set()

    def answer(self, limit_s):
        """True or False; None: not yet."""
        return self._good if self._done.wait(limit_s) else None


class Watch:
    """Watches one store. `away` may be read from any thread."""

    def __init__(self, server, ask):
        # `ask` asks the store through the client: True where it answered.
        self.away = False
        self._server = server
        self._ask = ask
        self._asking = None
        self._connection = None
        self._calls = {}  # id: [start, abandon or None], changed by single operations
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def start(self):
        """True: the store answers, and is watched from now on."""
        if not (self._connected() and self._answers()):
            return False
        threading.Thread(target=self._run, daemon=True).start()
        return True

    def begin(self, abandon):
        """Before a call of the client. abandon(call) is called, once at most and from another
        thread, where the call may be answered in its place. None: it may not."""
        call = [time.monotonic(), abandon]
        self._calls[id(call)] = call
        return call

    def end(self, call):
        self._calls.pop(id(call), None)

    def suspect(self):
        """A call has answered that the store is away."""
        try:
            self._far.send(b"!")
        except BlockingIOError:
            pass  # it is being looked into

    # ---- on the thread ---------------------------------------------------------------------------

    def _run(self):
        while True:
            if self.away:
                self._sleep(LOOK_S)
                if self._connected() and self._answers():
                    self.away = False
                else:
                    self._abandon()
            elif self._something_is_wrong() and not (self._connected() and self._answers()):
                self.away = True
                self._abandon()

    def _something_is_wrong(self):
        """After LOOK_S at most."""
        if self._connection is None or self._sleep(LOOK_S):
            return True
        slowest = time.monotonic() - SLOW_S
        return any(call[0] < slowest for call in list(self._calls.values()))

    def _sleep(self, seconds):
        """True: the connection has closed, or a call is suspicious."""
        poll = select.poll()
        poll.register(self._near, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection, select.POLLIN | select.POLLRDHUP)
        ready = dict(poll.poll(seconds * 1000))
        if self._near.fileno() in ready:
            self._near.recv(4096)
        if self._connection is not None and self._connection.fileno() in ready:
            self._connection.close()
            self._connection = None
        return bool(ready)

    def _connected(self):
        if self._connection is None:
            self._connection = connect(self._server)
        return self._connection is not None

    def _answers(self):
        # One that hangs is waited for on the next look: another would hang too.
        self._asking = self._asking or Asking(self._ask)
        good = self._asking.answer(ANSWER_LIMIT_S)
        if good is None:
            return False
        self._asking = None
        return good

    def _abandon(self):
        for call in list(self._calls.values()):
            if call[1] is not None:
                self.end(call)
                call[1](call)
