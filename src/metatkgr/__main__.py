"""``python -m metatkgr``: the same as the command ``metatkgr``."""

from metatkgr.cli import main

if __name__ == "__main__":
    main()
