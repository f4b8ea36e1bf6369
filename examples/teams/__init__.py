"""Document 003: training of teams in one process and in several. See README.md."""
