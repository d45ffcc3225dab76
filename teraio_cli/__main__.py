"""`python -m teraio_cli` is the `teraio` command."""

from teraio_cli.main import main

main()
