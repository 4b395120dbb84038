"""What others need to test against logstore, or to prove an object store of their own.

`logstore.testing.suite` proves a backend, `logstore.testing.wrappers` make one fail,
count, shuffle or wait, and `logstore.testing.servers` start real servers on loopback.
The suite needs pytest, and the servers need moto or the ``weed`` binary, so nothing is
imported here.
"""
