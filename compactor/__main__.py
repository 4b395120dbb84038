"""`python -m compactor` is the command `compactor`."""

from compactor.commands.cli import main

main()
