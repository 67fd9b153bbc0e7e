"""Runs the command line: ``python -m gateway`` is ``sluicegate``."""

from gateway.cli import run

if __name__ == "__main__":
    run()
