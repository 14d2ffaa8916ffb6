"""Runs one server as its child, passes signals on to it, and ends it when the owner of standard input is gone.

A program of its own, so that a server outlives neither a crash nor a SIGKILL of the process that asked for it: the
owner holds the other end of standard input, and the kernel closes it whatever happens. As the server's parent the
keeper can also never signal a stranger that was given the server's number.

    keeper.py LAST_SIGNAL USER FOLDER COMMAND…    (an empty USER means: stay who we are)
"""

import os
import select
import shutil
import subprocess
import sys

SECONDS_TO_END = 10.0


def launch(user: str, command: list[str]) -> subprocess.Popen[bytes]:
    """Start the server with its output on our standard error, which is its log."""
    if not user:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
        user=user,
        group=user,
        extra_groups=[],
    )


def end(server: subprocess.Popen[bytes], last_signal: int) -> None:
    """Take the server down without asking for patience: nobody will read its data again."""
    server.send_signal(last_signal)
    try:
        server.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(last_signal: int, user: str, folder: str, command: list[str]) -> int:
    """Keep the server until it ends by itself or its owner does."""
    server = launch(user, command)
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    ended = os.pidfd_open(server.pid)
    while True:
        readable, _, _ = select.select([0, ended], [], [])
        if ended in readable:
            return abs(server.wait())
        wishes = os.read(0, 1024)
        if not wishes:
            end(server, last_signal)
            shutil.rmtree(folder, ignore_errors=True)
            return 0
        for number in wishes.split():
            server.send_signal(int(number))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
