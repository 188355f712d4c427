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


def read_master(options):
    """The same, asked for now; nothing where the master does not answer in time."""
    host = options.get("master_server_address", "").rpartition(":")[0].strip("[]")
    port = options.get("master_metrics_port", "")
    if not host or not port:
        return {}
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return parse(connection.getresponse().read(1 << 20).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
