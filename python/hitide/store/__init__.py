"""A Mooncake store on this machine, from the package's own programs: for people and for tests."""
