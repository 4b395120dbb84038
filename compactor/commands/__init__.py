"""What the command `compactor` reads, does and prints."""
