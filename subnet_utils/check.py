"""Check profiles before anything is run: `python -m subnet_utils.check tiny`."""

import argparse
import sys

from subnet_utils.core.papers import notebooks
from subnet_utils.core.study import Study


def main(arguments: list[str]) -> int:
    """Check profiles, and that the data and published weights that they name are there.

    One line per error on stderr and exit status 2.
    """
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.check", description=__doc__)
    parser.add_argument("profile", nargs="+", help="a name, such as laptop, or a YAML file")
    try:
        for name in parser.parse_args(arguments).profile:
            require(Study.load(name))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def require(study: Study) -> None:
    """Raise ValueError for what the notebooks of a study need and what is not there."""
    from subnet_utils.core.lab import Lab  # imports torch

    lab = Lab.open(study)
    for paper, notebook in notebooks().values():
        paper.require(notebook, lab)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
