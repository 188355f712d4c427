"""The store agent: a small process that holds the Mooncake client.

The cache speaks to it over Unix sockets in the frames of docs/formats/agent_protocol.md and shares
its host memory with it as memory file descriptors, so that payloads are never copied between the
two. A client that hangs or crashes costs this process only.
"""
