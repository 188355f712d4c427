"""What the master says of itself over HTTP."""

import http.client

TIMEOUT_S = 0.4
NAMES = {
    "master_key_count": "objects",
    "master_allocated_bytes": "bytes_used",
    "master_total_capacity_bytes": "bytes_limit",
    "master_evicted_key_count": "evicted_objects",
}


def parse(text):
    """{our name: whole number as text} of the lines that we know."""
    out = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 2 and parts[0] in NAMES:
            try:
                out[NAMES[parts[0]]] = str(int(float(parts[1])))
            except ValueError:
                continue
    return out


def _get(options, path):
    """What the master answers, or None where it does not in time, or is not to be asked."""
    host = options.get("master_server_address", "").rpartition(":")[0].strip("[]")
    port = options.get("master_metrics_port", "")
    if not host or not port:
        return None
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read(1 << 20).decode(errors="replace")
        return text if response.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def read_master(options):
    """The same, asked for now; nothing where the master does not answer in time."""
    return parse(_get(options, "/metrics") or "")


def master_serves(options):
    """True: the master's HTTP service answers, or there is no port to ask it at."""
    return not options.get("master_metrics_port") or _get(options, "/get_all_segments") is not None
