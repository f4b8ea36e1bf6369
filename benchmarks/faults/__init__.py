"""The same faults for every library: an env that fails on schedule, a program that meets it, a judge, a table."""
