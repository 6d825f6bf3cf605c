"""`python -m pate_fed.cli`, as the console script `pate-fed`."""

import sys

from pate_fed.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
