"""The Mooncake client behind guards.

The client crashes or lies where its caller slips: null pointers, calls before set-up, duplicate
keys in a batch, sizes of zero, answers that are too many. None of that gets past this class.
"""

import re
import time

from hitide.store_agent import client_setup, frames, watch
from hitide.store_agent.segments import Segments

NO_SPACE = -200
BAD_PARAMETERS = -600
NOT_FOUND = -704
SUSPICIOUS = (-1, -900, -901)  # the client could not ask the store
THIN_SETTINGS = ("client_server_address",)
PROBE_KEY = b"hitide/probe"
NO_SPACE_TRIES = 3
NO_SPACE_PAUSE_S = 0.015


def _length_checked(answers, count, what):
    answers = list(answers) if answers is not None else []
    if len(answers) != count:
        raise frames.RequestError(f"{what}: {len(answers)} answers to {count} items",
                                  frames.STORE_FAILED)
    return [int(answer) for answer in answers]


def _usable(key):
    return 0 < len(key) <= frames.KEY_BYTES_MAX


class GuardedStore:
    """The calls of the protocol over one client. Any thread; setup() before the others."""

    def __init__(self, package):
        # `package` is the module mooncake.store, or a double of it.
        self._package = package
        self._store = None
        self._registers = False
        self.thin = False
        self.segments = None  # of a thin client
        self.groups = hasattr(package.ReplicateConfig(), "group_ids")

    @property
    def ready(self):
        return self._store is not None

    @staticmethod
    def server(options):
        """(host, port) of where the client's calls go."""
        thin = options.get("standalone_storage") == "1"
        name = "client_server_address" if thin else "master_server_address"
        return watch.parse_server(options.get(name, ""))

    def setup(self, options):
        """0, or the client's code: the object can be set up again then."""
        if self._store is not None:
            raise frames.RequestError("set up already")
        thin = options.get("standalone_storage") == "1"
        required = THIN_SETTINGS if thin else client_setup.REQUIRED
        missing = [name for name in required if name not in options]
        if missing:
            raise frames.RequestError(f"set-up lacks {', '.join(missing)}")
        store = self._package.MooncakeDistributedStore()
        # The client of this process never owns a segment: it may be killed at any time.
        if thin:
            code = store.setup_dummy(0, 0, options["client_server_address"])
        else:
            code, _ = client_setup.set_up(store, options, 0)
        if code is None or int(code) != 0:
            return -1 if code is None else int(code)
        # Over TCP the client takes any address, and what is registered can be read by peers.
        self._registers = not thin and options["protocol"] != "tcp"
        self.thin = thin
        self._store = store
        if thin:
            self.segments = Segments(store, self._package.MooncakeHostMemAllocator())
        return 0

    def register(self, base, size):
        """Of a real client; a thin one's memory is its segments'."""
        return int(self._client().register_buffer(base, size)) if self._registers else 0

    def unregister(self, base):
        if self.thin:
            return self.segments.drop(base)
        return int(self._client().unregister_buffer(base)) if self._registers else 0

    def answers(self):
        """True where the store can be asked; takes as long as the client does."""
        return int(self._client().batch_is_exist([PROBE_KEY])[0]) >= 0

    def exists(self, keys):
        """1 there, 0 not, or a code."""
        results = [frames.ITEM_BAD_KEY] * len(keys)
        self._exists_into(results, keys, [i for i, key in enumerate(keys) if _usable(key)])
        return results

    def get(self, keys, addresses, sizes):
        """The object's bytes where it has exactly `sizes[i]` of them, or a code."""
        client = self._client()
        results = self._judge(keys, addresses, sizes)
        for part in self._rounds(keys, results):
            answers = _length_checked(
                client.batch_get_into([keys[i] for i in part], [addresses[i] for i in part],
                                      [sizes[i] for i in part]), len(part), "get")
            for i, answer in zip(part, answers):
                results[i] = self._exact(client, keys[i], sizes[i], answer)
        return results

    def put(self, keys, addresses, sizes, groups, known_absent=False):
        """PUT_WRITTEN, PUT_EXISTED or a code. The stored bytes of a key never change. With
        `known_absent` a key that exists all the same may be PUT_WRITTEN."""
        client = self._client()
        results = self._judge(keys, addresses, sizes)
        parts = self._rounds(keys, results)
        first = parts[0] if parts else []
        # A put of a key that exists answers success without a look at the bytes: ask first.
        absent = first if known_absent else self._absent_of(first, keys, results)
        for grouped in (True, False):
            part = [i for i in absent if (bool(groups[i]) and self.groups) is grouped]
            self._put_part(client, results, part, keys, addresses, sizes,
                           groups if grouped else None)
        # The same key again in this call: what the first one did decides.
        done = {keys[i]: results[i] for i in first}
        for part in parts[1:]:
            for i in part:
                code = done[keys[i]]
                results[i] = frames.PUT_EXISTED if code >= 0 else code
        return results

    def remove(self, keys):
        """0, or a code; NOT_FOUND for an absent key."""
        client = self._client()
        results = [frames.ITEM_BAD_KEY] * len(keys)
        named = {key: None for key in keys if _usable(key)}
        if named:
            answers = _length_checked(client.batch_remove(list(named), True), len(named), "remove")
            named = dict(zip(named, answers))
        return [named.get(key, frames.ITEM_BAD_KEY) for key in keys] if named else results

    def remove_prefix(self, prefix):
        """How many objects went whose keys begin with `prefix`, or a code."""
        client = self._client()
        if not _usable(prefix):
            return frames.ITEM_BAD_KEY
        # All but these characters stand for themselves in the store's regular expressions.
        pattern = re.sub(rb"[\\^$.*+?()\[\]{}|]", rb"\\\g<0>", prefix)
        return int(client.remove_by_regex(b"^" + pattern, True))

    def close(self):
        """Nothing may be called after this."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _client(self):
        if self._store is None:
            raise frames.RequestError("the store is not set up", frames.NOT_READY)
        return self._store

    def _absent_of(self, indices, keys, results):
        """Those of absent keys; the others have their results."""
        self._exists_into(results, keys, indices)
        absent = []
        for i in indices:
            if results[i] == 1:
                results[i] = frames.PUT_EXISTED
            elif results[i] == 0:
                absent.append(i)
        return absent

    def _exists_into(self, results, keys, indices):
        if not indices:
            return
        answers = self._client().batch_is_exist([keys[i] for i in indices])
        for i, answer in zip(indices, _length_checked(answers, len(indices), "exists")):
            results[i] = answer

    @staticmethod
    def _judge(keys, addresses, sizes):
        """Codes of the items that must not reach the client, None for the others."""
        results = []
        for key, address, size in zip(keys, addresses, sizes):
            results.append(frames.ITEM_BAD_KEY if not _usable(key) else
                           frames.ITEM_BAD_SIZE if size == 0 else
                           frames.ITEM_UNMAPPED if address == 0 else None)
        return results

    @staticmethod
    def _rounds(keys, results):
        """Indices of the open items in lists without duplicate keys: of two items with one key in
        a call, the client fills the last one's buffer only, and calls both a success."""
        rounds, seen = [], {}
        for i, key in enumerate(keys):
            if results[i] is not None:
                continue
            number = seen.get(key, 0)
            seen[key] = number + 1
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(i)
        return rounds

    @staticmethod
    def _exact(client, key, size, answer):
        if answer == size:
            return answer
        if answer >= 0:
            return frames.ITEM_LENGTH_MISMATCH
        if answer == BAD_PARAMETERS:  # so it calls a buffer that is too small
            held = int(client.get_size(key))
            if held > size:
                return frames.ITEM_LENGTH_MISMATCH
            if held == NOT_FOUND:
                return NOT_FOUND
        return answer

    def _put_part(self, client, results, part, keys, addresses, sizes, groups):
        """Puts items of distinct keys, with another try for those that found no space."""
        for attempt in range(NO_SPACE_TRIES):
            if not part:
                return
            if attempt:
                time.sleep(NO_SPACE_PAUSE_S)
            arguments = [[keys[i] for i in part], [addresses[i] for i in part],
                         [sizes[i] for i in part]]
            if groups is not None:
                config = self._package.ReplicateConfig()
                config.group_ids = [groups[i] for i in part]
                arguments.append(config)
            answers = _length_checked(client.batch_put_from(*arguments), len(part), "put")
            for i, answer in zip(part, answers):
                results[i] = answer if answer < 0 else frames.PUT_WRITTEN
            part = [i for i in part if results[i] == NO_SPACE]
