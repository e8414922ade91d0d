"""`python -m weft` is the `weft` command."""

from weft.cli.start import main

if __name__ == "__main__":
    main()
