"""The error that a user can fix. Imports nothing, so that every part may raise it."""


class UserError(ValueError):
    """A mistake of the user, in a key, a file or an argument.

    The message gives the key and its value, why it is wrong, and what to do instead. Scripts print
    it as one line and exit with 1. Any other exception is a bug of headscope: scripts show its
    traceback and say where to report it.
    """
