"""``python -m asterism``: the command line."""

from asterism.surfaces.cli import main

if __name__ == "__main__":
    main()
