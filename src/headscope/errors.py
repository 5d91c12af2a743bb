"""The error type for mistakes of the user. This module imports nothing, so every other module can
import it."""


class UserError(ValueError):
    """A mistake of the user in a key, a file or an argument.

    The message contains the key and its value, why it is wrong, and what to do instead. Scripts
    print the message as one line and exit with code 1. Any other exception is a bug in headscope:
    scripts print its traceback and say where to report it.
    """


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out, in Python or in torch, on a CPU or a GPU."""
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    from_torch = isinstance(error, RuntimeError) and any(each in str(error) for each in phrases)
    return from_torch or isinstance(error, MemoryError)


def first_line(error: BaseException) -> str:
    """The first line of the error's message, or the name of its type if there is no message."""
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
