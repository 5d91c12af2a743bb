"""The error that a user can fix. Imports nothing, so that every part may raise it."""


class UserError(ValueError):
    """A mistake of the user, in a key, a file or an argument.

    The message gives the key and its value, why it is wrong, and what to do instead. Scripts print
    it as one line and exit with 1. Any other exception is a bug of headscope: scripts show its
    traceback and say where to report it.
    """


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether this is Python's, torch's or a device's way to say that there is no more memory."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    of_torch = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return of_torch or isinstance(error, MemoryError)


def first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
