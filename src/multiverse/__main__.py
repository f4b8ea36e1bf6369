"""`python -m multiverse` is the `multiverse` command."""

from multiverse.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
