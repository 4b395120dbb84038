"""Bringing the snapshot manifests of threads up to date."""
