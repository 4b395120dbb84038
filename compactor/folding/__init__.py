"""Which snapshots a thread needs, making them, and which of them stay."""
