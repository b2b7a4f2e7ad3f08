"""Entry of the warden process: `python -I -S …/_warden/__main__.py CONTROL_FD`; everything else comes over that fd."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from _warden.run import main  # type: ignore[import-not-found]  # a top-level package in this process only

    main(int(sys.argv[1]))
