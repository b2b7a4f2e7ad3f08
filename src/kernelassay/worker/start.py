"""First file that runs in the jail: sets the import path, then hands over to the loop.

Started as `python -I -S start.py FD SITE SUBMISSION`: isolated, without site packages, so that neither the
environment nor the working directory nor a `.pth` or `sitecustomize.py` adds code. `SITE` holds torch and what it
needs.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGE = "assay_worker"


def _start(fd: int, site: str, submission: str) -> None:
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != here]
    sys.path.append(site)
    spec = importlib.util.spec_from_file_location(PACKAGE, here / "__init__.py", submodule_search_locations=[str(here)])
    if spec is None or spec.loader is None:
        raise SystemExit("the worker's own files are missing")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    importlib.import_module(f"{PACKAGE}.main").main(fd, Path(submission))


if __name__ == "__main__":
    _start(int(sys.argv[1]), sys.argv[2], sys.argv[3])
