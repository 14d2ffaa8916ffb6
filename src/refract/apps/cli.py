"""Where the `refract` command begins: before anything else is imported, so that an early Ctrl-C is quiet, too."""

import io
import os
import sys


def main() -> None:
    """Run the command line."""
    try:
        _open_closed_descriptors()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a file's name need not be text
        from refract.apps.commands import app  # noqa: PLC0415

        app()
    except KeyboardInterrupt:
        sys.exit(130)


def _open_closed_descriptors() -> None:
    """Give the process the three files that everyone counts on: else a socket becomes what others take for output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
    # Python has none of its own for what was closed when it started.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
