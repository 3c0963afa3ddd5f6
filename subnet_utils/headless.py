"""papermill as the Snakefile runs it: `python -m subnet_utils.headless` in place of `python -m papermill`.

papermill itself, which starts in a third of the time. The format checks of jsonschema, which it loads with nbformat,
build a grammar of international addresses (RFC 3987) each time, 1.5 of 2.2 seconds; a notebook's schema has none.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # for jsonschema: this one is not installed

from papermill.__main__ import papermill  # noqa: E402

if __name__ == "__main__":
    papermill()
