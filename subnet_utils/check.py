"""Check profiles before anything is run: `python -m subnet_utils.check tiny`."""

import argparse
import sys

from subnet_utils.study import Study


def main(arguments: list[str]) -> int:
    """Check profiles, and that the data and published weights that they name are there.

    One line per fault on stderr and exit status 2.
    """
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.check", description=__doc__)
    parser.add_argument("profile", nargs="+", help="a name, such as laptop, or a YAML file")
    try:
        for name in parser.parse_args(arguments).profile:
            study = Study.load(name)
            if study.names_files:
                from subnet_utils.cost.sections import require_files  # seconds to import, needed by few

                require_files(study)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
