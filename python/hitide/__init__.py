"""HiTide's Python side: the store agent, which holds the Mooncake client for the cache."""
