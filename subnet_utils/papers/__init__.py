"""The papers, a room each; see `core.papers`."""
