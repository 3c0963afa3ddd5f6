"""What to say about a name that nobody knows."""

import difflib
from collections.abc import Iterable


def nearest(name: object, valid: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest valid one if there is one, then all of them.

    >>> nearest("contat", ["contact", "inside"])
    "did you mean 'contact'? valid: contact, inside"
    """
    valid = list(valid)
    close = difflib.get_close_matches(str(name), valid, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}valid: {', '.join(valid)}"
