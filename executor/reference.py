"""A run without offload, for `--verify`: the digests of its gradients.

Started as a program of its own, `python -m teraio.executor.reference OUT STEPS MODULE? SCRIPT ...`,
so that the script runs twice in fresh interpreters. Its output is not shown.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from teraio.executor.verify import gradient_digest
from teraio.profiler.errors import VerificationError
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.script import Script, StopScript, run_script


def reference_digests(script: Script, steps: int) -> list[str]:
    """Run a script plainly in another process up to `steps` optimizer steps.

    Returns one digest per step, fewer if the script ends earlier. Raises VerificationError if
    the script fails.
    """
    with tempfile.TemporaryDirectory(prefix="teraio-verify-") as folder:
        out = Path(folder) / "digests.json"
        words = [str(out), str(steps), "module" if script.is_module else "script"]
        program = [sys.executable, "-m", __name__, *words, script.target, *script.arguments]
        done = subprocess.run(
            program, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode or not out.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            msg = f"the run without offload ended with exit code {done.returncode}: {last}"
            raise VerificationError(msg, hint="does the script run under plain `python`?")
        digests: list[str] = json.loads(out.read_text())
        return digests


def record_digests(script: Script, steps: int) -> tuple[list[str], int]:
    """Run a script in this process without offload; return its digests and its exit code."""
    digests: list[str] = []

    def before(optimizer: torch.optim.Optimizer) -> None:
        if len(digests) == steps:
            raise StopScript
        digests.append(gradient_digest(optimizer, None))

    with OptimizerWatch(before, lambda _: None, in_groups=False).installed():
        return digests, run_script(script)


def main(arguments: list[str]) -> int:
    """Write the digests of a script to a file; the exit code is the script's."""
    out, steps, kind, target, *rest = arguments
    digests, exit_code = record_digests(Script(target, tuple(rest), kind == "module"), int(steps))
    Path(out).write_text(json.dumps(digests))
    return exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
