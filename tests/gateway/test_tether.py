"""A tied command runs like any other, and does not outlive who started it.

What becomes of it when that is killed: ``tests/e2e/test_up.py``.
"""

import os
import subprocess
import sys
import threading

import pytest

from gateway.tether import tied

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own signal")


def test_a_tied_command_gets_its_words_and_gives_its_exit_status() -> None:
    words = [sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(5)", "two words"]
    done = subprocess.run(tied(words), capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("two words\n", 5)


@linux
def test_it_does_not_begin_where_who_started_it_is_gone_already() -> None:
    words = tied([sys.executable, "-c", "print('ran')"])
    somebody_else = ["1" if word == str(os.getpid()) else word for word in words]
    done = subprocess.run(somebody_else, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 1)


def test_from_a_thread_that_may_end_before_the_process_it_is_not_tied() -> None:
    words, found = [sys.executable, "-V"], list[list[str]]()
    thread = threading.Thread(target=lambda: found.append(tied(words)))
    thread.start()
    thread.join()
    assert found == [words]
