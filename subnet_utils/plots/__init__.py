"""Everything that is drawn: `figures` has the style and what all share, `panels` whole figures of several studies."""
