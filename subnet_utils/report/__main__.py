"""Build the report of one profile: `python -m subnet_utils.report tiny`."""

import argparse
import sys

from subnet_utils.report.site import Site


def main() -> int:
    """Build the pages, say where all is and what of the papers is missing; 2 and a line on stderr if nothing is."""
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.report", description="Build the HTML report.")
    parser.add_argument("profile", help="tiny, laptop, paper, or the name of your own study")
    try:
        site = Site(parser.parse_args().profile)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    site.build()
    print(site.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
