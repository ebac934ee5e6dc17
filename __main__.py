"""`python -m pfvm` is the `pfvm` command."""

from pfvm.tools.cli import main

if __name__ == "__main__":
    main()
