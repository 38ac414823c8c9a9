"""`python -m agentic_bpt` is the command `agentic-bpt`."""

from agentic_bpt.cli import main

if __name__ == "__main__":
    main()
