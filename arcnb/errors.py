"""The error that one sentence explains."""


class ArcnbError(ValueError):
    """Something cannot be done as asked: one sentence with the file, task or parameter, and the remedy.

    Notebooks and commands show the sentence alone, without a traceback, and end with a non-zero exit. Errors
    that callers handle in ways of their own have classes of their own, where they are raised.
    """
