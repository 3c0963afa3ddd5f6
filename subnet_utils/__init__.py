"""Subnetworks of neural networks: the helper package behind the notebooks of this companion.

Read the modules in the order of the README; each one starts with the idea and its source. No library is imported here:
a notebook's first act is to start the server that its workers are copied from, before it imports torch itself.
"""

import warnings

# transformers' progress bars would like notebook widgets; ours are plain
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.1.0"
