"""Fault comparison of libraries: an env that fails on schedule, a program that steps it, a judge and a table."""
