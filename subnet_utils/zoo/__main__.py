"""`python -m subnet_utils.zoo list`; `make PROFILE [NAME ...]` fills the zoo; `unpack` gives it to the notebooks."""

import argparse
import sys

from subnet_utils import zoo
from subnet_utils.core.jobs import WorkerDied
from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Fault
from subnet_utils.core.store import Store, StoreError
from subnet_utils.zoo import cards, steps


def main() -> int:
    """List the zoo, after something was put into it; 2 and a line on stderr for what cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.zoo", description="Networks without training.")
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("list", help="say what there is")
    commands.add_parser("unpack", help="put what the entries were made from among the artefacts, for the notebooks")
    filling = commands.add_parser("make", help="put networks of a profile into the zoo; what is missing is trained")
    filling.add_argument("profile", help="a name in params/ or a YAML file")
    filling.add_argument("names", nargs="*", help="of entries; all by default")
    arguments = parser.parse_args()
    try:
        if arguments.command == "make":
            cards.make(Lab.open(arguments.profile), arguments.names)
        if arguments.command == "unpack":
            store = Store()
            print(f"{store.root}: {steps.unpack(store)} artefacts were lacking")
            return 0
        print(zoo.list().to_string(index=False))
    except (ValueError, Fault, WorkerDied, StoreError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
