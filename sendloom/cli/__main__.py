"""`python -m sendloom.cli`, which needs no script on the PATH."""

from sendloom.cli import main

main()
