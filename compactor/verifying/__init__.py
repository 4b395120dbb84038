"""Proving what is stored from itself."""
