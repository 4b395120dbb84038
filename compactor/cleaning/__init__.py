"""What goes: hidden rows, what nothing names, and threads that are not kept for ever."""
