"""Tables that are made by reading threads, kept in the store."""
