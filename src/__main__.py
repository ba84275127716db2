"""`python -m stoker` is the `engine` command."""

from .cli.app import main

if __name__ == "__main__":
    main()
