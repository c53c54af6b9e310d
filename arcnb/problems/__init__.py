"""Coding problems judged by test cases, in Python and q; docs/problems.md is the guide."""
