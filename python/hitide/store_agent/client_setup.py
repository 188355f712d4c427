"""Sets up a real client, of whatever release: optional settings that it does not know are left out
where that changes nothing of what is stored and found."""

from hitide.store_agent import frames

REQUIRED = ("local_hostname", "metadata_server", "protocol", "device_name",
            "master_server_address")


def _optional(settings):
    """[(keyword, value), ...] of what is asked for, those first that can be left out."""
    optional = []
    if settings.get("enable_ssd_offload") == "1":
        optional.append(("enable_ssd_offload", True))
        if settings.get("ssd_offload_path"):
            optional.append(("ssd_offload_path", settings["ssd_offload_path"]))
    optional.append(("tenant_id", settings.get("tenant_id", "default")))
    return optional


def set_up(store, settings, segment_bytes):
    """(the client's code, [names left out])."""
    optional = _optional(settings)
    left_out = []
    while True:
        try:
            code = store.setup(settings["local_hostname"], settings["metadata_server"],
                               segment_bytes, 0, settings["protocol"], settings["device_name"],
                               settings["master_server_address"], **dict(optional))
            return (-1 if code is None else int(code)), left_out
        except TypeError:
            if not optional:
                raise
        # The last one asked for is the youngest: it goes first.
        name, value = optional.pop(-2 if len(optional) > 1 else -1)
        if name == "tenant_id" and value != "default":
            # Without it, objects of another tenant would be found.
            raise frames.RequestError(
                f"this release of the store's client has no tenant_id, and '{value}' is asked for; "
                "install a newer one, or use the tenant 'default'")
        if name != "tenant_id":
            left_out.append(name)
