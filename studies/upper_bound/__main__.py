"""``python -m studies.upper_bound DATASET``; see ``measure``."""

import sys

from metatkgr.errors import MetaTKGRError
from studies.upper_bound.measure import main

if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except MetaTKGRError as error:
        sys.exit(f"error: {error}")
