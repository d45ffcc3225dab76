"""A program where torch was imported before runs and ends as one in a new process of Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli import UNMEASURED
from warm import Warm

PROGRAM = """
import atexit, os, sys
atexit.register(print, "the end")
print(__name__, sys.argv, sys.path[0], os.getcwd(), os.environ["WORD"])
print(sys.stdin.read(), file=sys.stderr)
{last}
"""


@pytest.mark.parametrize(
    ("brief", "last"),
    [
        *((False, last) for last in ("", "sys.exit(3)", "sys.exit('no more')", "os.kill(0, 9)")),
        *((True, last) for last in ("", "sys.exit(3)", "sys.exit('no more')", "sys.exit()")),
    ],
)
@pytest.mark.parametrize("words", [["{folder}/program.py"], ["-m", "program"], ["-c", PROGRAM]])
def test_a_program_is_what_it_is_in_a_process_of_its_own(
    words: list[str], last: str, brief: bool, tmp_path: Path
) -> None:
    text = PROGRAM.format(last=last.replace("kill(0", "kill(os.getpid()"))
    (tmp_path / "program.py").write_text(text)
    words = [text if word == PROGRAM else word.format(folder=tmp_path) for word in words]
    environment = UNMEASURED | {"WORD": "told"}
    fresh = subprocess.run(
        [sys.executable, *words, "a b"],
        cwd=tmp_path, env=environment, input=b"asked", capture_output=True, check=False,
    )  # fmt: skip
    warm = Warm(*words, "a b", cwd=tmp_path, env=environment, stdin=b"asked", brief=brief).done()
    assert warm.returncode == fresh.returncode
    assert (warm.stdout, warm.stderr) == (fresh.stdout, fresh.stderr)


def test_two_programs_have_other_random_numbers() -> None:
    code = "import random, torch; print(random.random(), torch.rand(1).item())"
    one, other = (Warm("-c", code, env=UNMEASURED).done().stdout.split() for _ in range(2))
    assert [a == b for a, b in zip(one, other, strict=True)] == [False, False]


def test_a_brief_program_that_raises_says_so() -> None:
    code = "import atexit; atexit.register(print, 'the end'); raise ArithmeticError('no data')"
    done = Warm("-c", code, env=UNMEASURED, brief=True).done()
    assert (done.returncode, done.stdout) == (1, b"the end\n")
    assert done.stderr.rstrip().endswith(b"ArithmeticError: no data")
