"""The one exception that means "the user's input is wrong", for every room."""


class InputError(Exception):
    """A file, flag or config that cannot be used as given.

    Its message is one sentence for the user: what is wrong, where, and what to do.
    `jaxformer.main` prints it without a traceback and exits with code 2.
    """
