"""Frames of the agent protocol, version 1: docs/formats/agent_protocol.md.

Everything that arrives is bounded and checked before it is used; a violation raises FrameError,
after which the connection cannot be trusted any more, or RequestError, which spoils one request.
"""

import itertools
import struct

MAGIC = 0x41535448  # "HTSA" in little endian
VERSION = 1
BODY_BYTES_MAX = 4 << 20
ITEMS_MAX = 4096
KEY_BYTES_MAX = 1024

HELLO, SETUP, ADD_LANE, ADD_MEMORY, REMOVE_MEMORY = 1, 2, 3, 4, 5
EXISTS, GET, PUT, REMOVE, STATS, SHUTDOWN = 6, 7, 8, 9, 10, 11
ALLOCATE_MEMORY, FREE_MEMORY, PUT_ABSENT, REMOVE_PREFIX = 12, 13, 14, 15
REPLY = 0x8000

# Status of a reply.
OK, BAD_FRAME, BAD_VERSION, BAD_REQUEST, NOT_READY, PACKAGE_MISSING, STORE_FAILED = range(7)

# Results of single items. Mooncake's own codes lie between -1 and -1999.
PUT_WRITTEN, PUT_EXISTED = 0, 1
ITEM_UNMAPPED = -20001
ITEM_BAD_KEY = -20002
ITEM_LENGTH_MISMATCH = -20003
ITEM_BAD_SIZE = -20004
NO_MEMORY = -20006
NOT_ADOPTABLE = -20007
STORE_AWAY = -20008

HEADER = struct.Struct("<IHHQII")
COUNT = struct.Struct("<I")
PAIR = struct.Struct("<HH")
ITEM = struct.Struct("<IHHQQ")
MEMORY = struct.Struct("<IQQ")
REGION = struct.Struct("<I")
SEGMENT = struct.Struct("<IQ")
RESULTS = struct.Struct("<II")


class FrameError(Exception):
    """The stream is not one of frames; `status` says what to answer before it is closed."""

    def __init__(self, message, status=BAD_FRAME):
        super().__init__(message)
        self.status = status


class RequestError(Exception):
    """One request cannot be carried out."""

    def __init__(self, message, status=BAD_REQUEST):
        super().__init__(message)
        self.status = status


def decode_header(data):
    """(type, request id, status, body bytes) of a header's bytes."""
    magic, version, kind, request, status, body = HEADER.unpack(data)
    if magic != MAGIC:
        raise FrameError(f"magic {magic:#x} is not {MAGIC:#x}")
    if version != VERSION:
        raise FrameError(f"version {version}: this agent speaks {VERSION}", BAD_VERSION)
    if body > BODY_BYTES_MAX:
        raise FrameError(f"a body of {body} bytes: the limit is {BODY_BYTES_MAX}")
    return kind, request, status, body


def encode(kind, request, status=OK, body=b""):
    """A whole frame."""
    return HEADER.pack(MAGIC, VERSION, kind, request, status, len(body)) + body


def _count(body):
    if len(body) < COUNT.size:
        raise RequestError(f"a body of {len(body)} bytes has no count")
    count = COUNT.unpack_from(body)[0]
    if count > ITEMS_MAX:
        raise RequestError(f"{count} items: the limit is {ITEMS_MAX}")
    return count


def _texts(body, at, lengths):
    """The byte strings of these lengths that fill the body from `at` to its end."""
    if at + sum(lengths) != len(body):
        raise RequestError(f"the body has {len(body)} bytes, its lengths say {at + sum(lengths)}")
    data = bytes(body[at:])  # once: a slice of a view costs several times as much
    ends = list(itertools.accumulate(lengths))
    return [data[end - length:end] for end, length in zip(ends, lengths)]


def decode_keys(body):
    """[key, ...] of EXISTS, REMOVE and REMOVE_PREFIX."""
    count = _count(body)
    end = COUNT.size + 2 * count
    if end > len(body):
        raise RequestError(f"a body of {len(body)} bytes cannot hold {count} keys")
    return _texts(body, end, struct.unpack_from(f"<{count}H", body, COUNT.size))


def encode_keys(keys):
    return (COUNT.pack(len(keys)) + struct.pack(f"<{len(keys)}H", *map(len, keys)) +
            b"".join(keys))


def decode_items(body):
    """([(region, offset, bytes), ...], [key, ...], [group, ...]) of GET and PUT."""
    count = _count(body)
    end = COUNT.size + ITEM.size * count
    if end > len(body):
        raise RequestError(f"a body of {len(body)} bytes cannot hold {count} items")
    records = list(ITEM.iter_unpack(body[COUNT.size:end]))
    lengths = [record[1] for record in records] + [record[2] for record in records]
    texts = _texts(body, end, lengths)
    places = [(region, offset, size) for region, _, _, offset, size in records]
    return places, texts[:count], texts[count:]


def encode_items(places, keys, groups):
    records = [ITEM.pack(region, len(key), len(group), offset, size)
               for (region, offset, size), key, group in zip(places, keys, groups)]
    return COUNT.pack(len(keys)) + b"".join(records) + b"".join(keys) + b"".join(groups)


def decode_pairs(body):
    """{name: value} of text pairs."""
    count = _count(body)
    end = COUNT.size + PAIR.size * count
    if end > len(body):
        raise RequestError(f"a body of {len(body)} bytes cannot hold {count} pairs")
    lengths = [length for pair in PAIR.iter_unpack(body[COUNT.size:end]) for length in pair]
    texts = _texts(body, end, lengths)
    try:
        names = [text.decode() for text in texts]
    except UnicodeDecodeError as error:
        raise RequestError(f"a text is not UTF-8: {error}") from None
    return dict(zip(names[0::2], names[1::2]))


def encode_pairs(pairs):
    texts = [text.encode() for pair in pairs.items() for text in pair]
    lengths = [len(text) for text in texts]
    return (COUNT.pack(len(pairs)) + struct.pack(f"<{len(lengths)}H", *lengths) +
            b"".join(texts))


def decode_memory(body):
    """(region, offset, bytes) of ADD_MEMORY."""
    if len(body) != MEMORY.size:
        raise RequestError(f"a body of {len(body)} bytes, not {MEMORY.size}")
    return MEMORY.unpack(body)


def decode_region(body):
    """The region of REMOVE_MEMORY, the segment of FREE_MEMORY."""
    if len(body) != REGION.size:
        raise RequestError(f"a body of {len(body)} bytes, not {REGION.size}")
    return REGION.unpack(body)[0]


def decode_segment(body):
    """(segment, bytes) of ALLOCATE_MEMORY."""
    if len(body) != SEGMENT.size:
        raise RequestError(f"a body of {len(body)} bytes, not {SEGMENT.size}")
    return SEGMENT.unpack(body)


def encode_results(results, micros=0):
    """One signed 64-bit number per item, after the time that the store took."""
    return (RESULTS.pack(len(results), min(micros, 0xffffffff)) +
            struct.pack(f"<{len(results)}q", *results))


def decode_results(body):
    """(results, microseconds)."""
    if len(body) < RESULTS.size:
        raise RequestError(f"a body of {len(body)} bytes has no results")
    count, micros = RESULTS.unpack_from(body)
    if len(body) != RESULTS.size + 8 * count:
        raise RequestError(f"a body of {len(body)} bytes is not {count} results")
    return list(struct.unpack_from(f"<{count}q", body, RESULTS.size)), micros
