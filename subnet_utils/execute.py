"""papermill as the Snakefile runs it: `python -m subnet_utils.execute` in place of `python -m papermill`.

papermill itself, without two waits. The format checks of jsonschema, which it loads with nbformat, build a grammar of
international addresses (RFC 3987) at every start, 1.5 of 2.2 seconds; a notebook's schema has none. And a kernel that
is asked to end first asks its children to, of which multiprocessing's resource tracker takes no notice, 2.5 seconds;
when the last cell has been run nothing is left to be done, so it is killed. Nor does a kernel warn that it talks to
papermill, on the same machine, without encryption.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # for jsonschema: this one is not installed

from papermill.__main__ import papermill  # noqa: E402
from papermill.clientwrap import PapermillNotebookClient  # noqa: E402

PapermillNotebookClient.shutdown_kernel = "immediate"  # nbclient's settings, which papermill does not offer
PapermillNotebookClient.extra_arguments = ["--log-level=ERROR"]

if __name__ == "__main__":
    papermill()
