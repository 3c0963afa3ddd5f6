"""Build the report of one profile: `python -m subnet_utils.report tiny`."""

import argparse
import sys

from subnet_utils.report.site import build_site, missing_places, summary


def main() -> int:
    """Build the site and print where figures, tables and report are, and what of the paper is missing.

    2 and one line on stderr if there is nothing.
    """
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.report", description="Build the HTML report.")
    parser.add_argument("profile", help="tiny, laptop, paper, or the name of your own study")
    profile = parser.parse_args().profile
    try:
        build_site(profile)
        print(summary(profile))
        if missing := missing_places(profile):
            print(f"{'missing':<11}{', '.join(missing)}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
