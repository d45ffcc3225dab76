"""The `teraio` command: argument parsing, rendering and composition."""
