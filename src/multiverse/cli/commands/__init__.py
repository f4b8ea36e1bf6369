"""One file per command: its options, and `run(arguments)` → exit code. `main` imports the one that was asked for."""
