"""``python -m asyncpool``: the command line."""

from asyncpool._cli import main

if __name__ == "__main__":
    main()
