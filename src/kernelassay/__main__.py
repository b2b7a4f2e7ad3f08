"""`python -m kernelassay` is `assay`."""

import sys

from kernelassay.cli import main

if __name__ == "__main__":
    sys.exit(main())
