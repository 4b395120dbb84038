"""`python -m compactor` is the command `compactor`."""

from compactor.cli import main

main()
