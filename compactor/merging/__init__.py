"""From segments, snapshots and runs to new runs."""
