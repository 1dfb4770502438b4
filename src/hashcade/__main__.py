"""``python -m hashcade``."""

from hashcade.cli import main

main()
