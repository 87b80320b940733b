"""`python -m ostinato.cli` is `ostinato`."""

from . import main

main(prog_name="ostinato")
