"""What the exit codes of `dartspec` mean."""

from dartspec.services.common.errors import DartspecError, FailedPrecondition, InvalidArgument, NotFound

FAILED = 1
WRONG_USE = 2  # wrong arguments, configuration or input: the caller can mend it
DIFFERENT = 3  # `generate --compare`: tokens that should be equal are not
INTERRUPTED = 130  # Ctrl-C
TERMINATED = 143  # SIGTERM


def exit_code(error: DartspecError) -> int:
    """The exit code that tells of an error."""
    return WRONG_USE if isinstance(error, InvalidArgument | FailedPrecondition | NotFound) else FAILED
